# A CPU image with the command monai-fairfl and the shipped bundles:
#
#   docker build --tag monai-fairfl .
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD/hospitals:/data:ro" --volume "$PWD/runs:/runs" \
#       monai-fairfl try /data --out /runs/first
ARG PYTHON=python:3.11-slim
FROM ${PYTHON}

# The CPU build of torch comes from PyTorch's own index, alone and first, so that nothing replaces it.
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" "${TORCH}"

COPY setup.py README.md LICENSE MANIFEST.in pyproject.toml /src/
COPY monai_fairfl /src/monai_fairfl
COPY bundles /src/bundles
ARG EXTRAS=report,dicom
RUN pip install --no-cache-dir "/src[${EXTRAS}]" && rm -rf /src

# One thread for each training process, as the numbers of the documentation; jobs run beside each other.
ENV OMP_NUM_THREADS=1 MPLCONFIGDIR=/tmp/matplotlib
RUN useradd fairfl && mkdir /runs && chown fairfl /runs
USER fairfl
WORKDIR /runs
ENTRYPOINT ["monai-fairfl"]
CMD ["--help"]
