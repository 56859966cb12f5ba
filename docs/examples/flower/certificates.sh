#!/usr/bin/env bash
# An authority of the consortium's own, and a certificate of its server that this authority signed.
#
#     bash docs/examples/flower/certificates.sh FOLDER NAME IP
#
# FOLDER gets ca.crt, which every site needs; server.pem and server.key, for the server alone; and
# ca.key, which signs: lock it away. NAME and IP are those at which sites reach the server.
set -euo pipefail
folder=$1 name=$2 ip=$3
if [ -e "$folder" ]; then
    echo "$folder exists: give a new folder, nothing is overwritten" >&2
    exit 1
fi
mkdir -p "$folder"
cd "$folder"
umask 077

openssl ecparam -name secp384r1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -days 360 -subj "/CN=consortium" -out ca.crt \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign"

openssl ecparam -name secp384r1 -genkey -noout -out server.key
openssl req -new -key server.key -subj "/CN=$name" -out server.csr
printf 'subjectAltName=DNS:%s,IP:%s\nbasicConstraints=CA:FALSE\n' "$name" "$ip" > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 360 \
    -extfile server.ext -out server.pem
rm server.csr server.ext
