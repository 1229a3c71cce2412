#!/bin/sh
# mlirc-bench, or another script, from a checkout that is not installed, with whatever Python has torch: measuring needs
# no MLIR.
#   sh benchmarks/run.sh --run DIR --check-only -j 8 -o results.json
#   sh benchmarks/run.sh benchmarks/agreement.py run DIR -o results.json
set -e
root=$(cd "$(dirname "$0")/.." && pwd)
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
mkdir "$site/mlirc"
# The folders become one package through links, as they do when installed.
ln -s "$root"/compiler/* "$root/dialects" "$root/passes" "$root/scripts" "$site/mlirc/"
case "$1" in
  *.py) ;;
  *) set -- -m mlirc.tools.mlirc_bench "$@" ;;
esac
PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false \
  "${PYTHON:-python3}" "$@"
