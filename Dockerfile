# A CPU image with the command monai-fairfl, the shipped bundles and NVIDIA FLARE.
# docs/install.md says how to build it, what to mount, and how a hospital's client runs in it.
#
#   docker build --tag monai-fairfl .
#   mkdir -p runs      # or Docker makes it as root, and --user cannot write there
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD/hospitals:/data:ro" --volume "$PWD/runs:/runs" \
#       monai-fairfl try /data --out /runs/first

# A fixed version of Python and of Debian. The tag still gets their security updates: for the same image each time,
# give its digest, --build-arg PYTHON=python@sha256:...
ARG PYTHON=python:3.11.13-slim-bookworm
FROM ${PYTHON}

# The CPU build of torch comes from PyTorch's own index, alone and first, so that nothing replaces it.
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" "${TORCH}"

COPY setup.py README.md LICENSE MANIFEST.in pyproject.toml /src/
COPY monai_fairfl /src/monai_fairfl
COPY bundles /src/bundles
ARG EXTRAS=report,dicom,nvflare
RUN pip install --no-cache-dir "/src[${EXTRAS}]" && rm -rf /src

# One thread for each training process, as the numbers of the documentation; jobs run beside each other.
ENV OMP_NUM_THREADS=1
# --user names an account without a name or a home: libraries that ask for these get them here.
ENV HOME=/tmp USER=fairfl MPLCONFIGDIR=/tmp/matplotlib
RUN useradd fairfl && mkdir /runs && chown fairfl /runs
USER fairfl
WORKDIR /runs
ENTRYPOINT ["monai-fairfl"]
CMD ["--help"]
