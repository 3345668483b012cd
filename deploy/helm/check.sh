#!/usr/bin/env bash
# Checks the chart, and renders deploy/kubernetes from it.
#
#   deploy/helm/check.sh           lint, schemas of three versions of Kubernetes, and that deploy/kubernetes is what it renders
#   deploy/helm/check.sh --write   renders deploy/kubernetes again
#
# helm comes from the Go module proxy, the schemas from PyPI; both are kept in target/helm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

helm_version=v3.20.2
schemas=kubernetes-validate==1.37.0
versions=(1.31 1.34 1.37)
tools=$PWD/target/helm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "check.sh: $*" >&2; exit 1; }

mkdir -p "$tools"
if ! [ -x "$tools/helm" ]; then
    .ci/need go=golang-go
    GOBIN=$tools go install "helm.sh/helm/v3/cmd/helm@$helm_version"
fi
helm() { "$tools/helm" "$@" 2>"$work/errors" || { cat "$work/errors" >&2; return 1; }; }
validate=$tools/python/bin/kubernetes-validate
if ! [ -x "$validate" ]; then
    .ci/need python3=python3 /usr/share/doc/python3-venv=python3-venv
    python3 -m venv --clear "$tools/python"
    "$tools/python/bin/pip" install --quiet --disable-pip-version-check "$schemas"
fi

# The manifests of deploy/kubernetes: the file of a template there, and the configuration, which kustomize gives a name of
# its content.
render() { # DIRECTORY
    local template name
    mkdir -p "$1/monitoring"
    helm template punctual deploy/helm --kube-version "${versions[-1]}" --set image.repository=punctual,restartOnChange=false \
        --set serviceMonitor.enabled=true --output-dir "$work/rendered" >/dev/null
    for template in "$work"/rendered/punctual/templates/*.yaml; do
        name=${template##*/}
        case "$name" in
            configuration.yaml)
                { echo '# The configuration of every pod. Secrets are files of the Secret `punctual`.'
                    sed -e '1,/^  punctual.yaml: |$/d' -e 's/^    //' "$template"; } >"$1/punctual.yaml" ;;
            service-monitor.yaml) plain "$template" >"$1/monitoring/$name" ;;
            *) plain "$template" >"$1/$name" ;;
        esac
    done
}
plain() { # FILE
    echo "# Rendered from deploy/helm by deploy/helm/check.sh --write."
    sed -e '/^---$/d' -e '/^# Source: /d' "$1" | sed -e '/./,$!d' -e 's/ *$//'
}

render "$work/kubernetes"
if [ "${1:-}" = --write ]; then
    cp -r "$work/kubernetes/." deploy/kubernetes/
    # tests/it/deploy/kubernetes.rs compares it: a change of one side needs no helm to be noticed.
    sha256sum deploy/helm/{Chart.yaml,values.yaml} deploy/helm/templates/* \
        $(cd "$work/kubernetes" && find . -type f | sort | sed 's|^\./|deploy/kubernetes/|') >deploy/kubernetes/rendered.sha256
else
    for file in $(cd "$work/kubernetes" && find . -type f); do
        diff "deploy/kubernetes/$file" "$work/kubernetes/$file" || fail "deploy/kubernetes/${file#./} is not what the chart renders: check.sh --write"
    done
fi

# Kinds of operators have no schema there.
check() { # NAME OPTIONS...
    local name=$1 version
    shift
    helm lint --quiet --strict --kube-version "${versions[0]}" deploy/helm "$@" || fail "$name: lint"
    for version in "${versions[@]}"; do
        helm template "punctual" deploy/helm --namespace punctual --kube-version "$version" "$@" >"$work/$name.yaml"
        python3 - "$work/$name.yaml" "$work/$name.own.yaml" <<'PYTHON'
import sys
documents = open(sys.argv[1]).read().split("\n---\n")
own = [text for text in documents if "monitoring.coreos.com/" not in text and "keda.sh/" not in text]
open(sys.argv[2], "w").write("\n---\n".join(own))
PYTHON
        "$validate" --quiet --strict -k "$version" "$work/$name.own.yaml" || fail "$name is not valid for Kubernetes $version"
    done
    echo "$name: $(grep -c '^kind: ' "$work/$name.yaml") objects, valid for Kubernetes ${versions[*]}"
}
cat >"$work/values.yaml" <<'YAML'
replicas: 5
image: { tag: "0.1.1", pullSecrets: [{ name: registry }] }
config: { sinks: { shop: null, jobs: { type: redis_list, key: jobs } }, routes: { order-timeout: null, r: { sink: jobs } }, shutdown_timeout: 1m }
terminationGracePeriodSeconds: 90
env: [{ name: PUNCTUAL__LOG__LEVEL, valueFrom: { secretKeyRef: { name: other, key: level } } }]
nodeSelector: { kubernetes.io/arch: amd64 }
tolerations: [{ key: batch, operator: Exists }]
podAnnotations: { example.com/owner: shop }
serviceMonitor: { enabled: true, labels: { release: prometheus } }
prometheusRule: { enabled: true, labels: { release: prometheus }, runbooks: "https://git.example/punctual/blob/main/" }
keda: { enabled: true }
YAML
check default
check many --values "$work/values.yaml"
check least --set podDisruptionBudget.enabled=false,networkPolicy.enabled=false,restartOnChange=false
for value in 'release: prometheus' 'threshold: "3000000"' 'https://git.example/punctual/blob/main/docs/operations.md#punctuallate' 'type: redis_list'; do
    grep -q "$value" "$work/many.yaml" || fail "the chart loses $value"
done
! grep -q '^  replicas:\|shop.example' "$work/many.yaml" || fail "the number of replicas is KEDA's, and the example can be removed"
if helm template punctual deploy/helm --kube-version "${versions[0]}" --set config.shutdown_timeout=30s >/dev/null 2>&1; then
    fail "the grace period can be below shutdown_timeout"
fi
