#!/bin/sh
# Builds the Dockerfile without a container engine and starts what it built. Debian, as root.
# LOCK=requirements.lock leaves the GPU packages out and is much smaller.
set -eu
cd "$(dirname "$0")/.."
LOCK=${LOCK:-requirements-cuda12.lock}
PORT=${PORT:-18080}
[ "$(id -u)" = 0 ] || { echo "image-check needs root (debootstrap and buildah's chroot isolation)"; exit 1; }
export DEBIAN_FRONTEND=noninteractive
if ! command -v buildah >/dev/null || ! command -v debootstrap >/dev/null || ! command -v crun >/dev/null; then
  echo "installing buildah, debootstrap, crun"
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends buildah debootstrap crun >/dev/null
fi
store=$(mktemp -d)
b() { buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs "$@"; }
cleanup() {
  trap - EXIT INT TERM
  # The whole session, as buildah's children do not end with it; the service gets time to end its worker.
  if [ -n "${server:-}" ]; then
    pkill -TERM -s "$server" || true
    left=25
    while [ "$left" -gt 0 ] && pgrep -s "$server" >/dev/null; do sleep 1; left=$((left - 1)); done
    pkill -KILL -s "$server" || true
  fi
  b rm --all >/dev/null 2>&1 || true
  rm -rf "$store"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
echo "base: a minimal Debian bookworm"
debootstrap --variant=minbase bookworm "$store/base" >"$store/debootstrap.log" 2>&1 || { tail -5 "$store/debootstrap.log"; exit 1; }
base=$(b from scratch)
b copy -q "$base" "$store/base" / >/dev/null
b commit -q "$base" localhost/debian-slim >/dev/null
rm -rf "$store/base"
# What this machine needs to reach its package registries is mounted for the build and never part of the image.
python3 -m pip config list | python3 -c '
import re, sys
print("[global]")
for line in sys.stdin:
    found = re.match(r"(?:global|:env:|install)\.([a-z-]+)=\x27(.*)\x27$", line.strip())
    if found and found[1] in ("index-url", "extra-index-url", "trusted-host", "timeout"):
        print(f"{found[1]} = {found[2]}")
print("cert = /run/registry-ca.pem")
' >"$store/pip.conf"
set -- --isolation chroot --network host --build-arg BASE=localhost/debian-slim --build-arg "LOCK=$LOCK"
set -- "$@" -v /etc/ssl/certs/ca-certificates.crt:/run/registry-ca.pem:ro -v "$store/pip.conf:/etc/pip.conf:ro"
[ ! -d /etc/apt/apt.conf.d ] || set -- "$@" -v /etc/apt/apt.conf.d:/etc/apt/apt.conf.d:ro
echo "building the Dockerfile with $LOCK"
b bud -q "$@" -t localhost/calibration-service . >"$store/build.log" 2>&1 || { tail -30 "$store/build.log"; exit 1; }
image=$(b from localhost/calibration-service)
run() { b run --isolation chroot --network host --user 10001 "$@"; }
echo "without a token it must refuse an address beyond loopback:"
if run "$image" -- calibrate serve --host 0.0.0.0 --port "$PORT" >"$store/refused.log" 2>&1; then echo "it did not refuse"; exit 1; fi
grep -m1 "refusing to listen" "$store/refused.log" || { echo "it did not say why"; tail -5 "$store/refused.log"; exit 1; }
setsid buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs run --isolation chroot --network host \
  --user 10001 --env CALIBRATE_TOKEN=image-check-token-0123456789abcdef "$image" -- \
  calibrate serve --host 0.0.0.0 --port "$PORT" >"$store/serve.log" 2>&1 &
server=$!
tries=0
until python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$PORT/healthz', timeout=2)" 2>/dev/null; do
  tries=$((tries + 1))
  [ "$tries" -lt 60 ] || { echo "the image did not serve /healthz"; tail -20 "$store/serve.log"; exit 1; }
  sleep 1
done
python3 - "$PORT" <<'PY'
import json, sys, time, urllib.error, urllib.request
base = f"http://127.0.0.1:{sys.argv[1]}"
def get(path, token):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(base + path, headers=headers), timeout=5) as answer:
        return json.load(answer)
try:
    get("/v1/devices", None)
    sys.exit("an unauthenticated request was answered")
except urllib.error.HTTPError as error:
    assert error.code == 401, error.code
for _ in range(60):
    devices = get("/v1/devices", "image-check-token-0123456789abcdef")["items"]
    if devices:
        break
    time.sleep(1)
print("devices:", ", ".join(device["name"] for device in devices))
PY
echo "image-check: ok (uid 10001, $LOCK)"
