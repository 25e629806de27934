#!/bin/sh
# version.sh VERSION DIRECTORY ETCD builds kube-apiserver and kube-controller-manager of another version of Kubernetes from its module, in about 6 minutes.
# The directory also gets the etcd of that path.
set -eu
version=$1 dir=$2 etcd=$3
[ ! -x "$dir/etcd" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0
go mod init example.org/kubernetes 2>/dev/null
go mod edit -require="k8s.io/kubernetes@$version"
# The module replaces its staging modules by directories that it does not contain. They have versions v0.x.y of their own.
mod=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
for module in $(sed -nE 's|^[[:space:]]*(k8s.io/[^ ]+) => ./staging.*|\1|p' "$mod"); do
	go mod edit -replace "$module=$module@v0.${version#v1.}"
done
stamps='-s -w'
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	minor=${version#v1.}
	stamps="$stamps -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*} -X $package.gitTreeState=clean"
done
mkdir -p "$dir"
go build -trimpath -buildvcs=false -ldflags "$stamps" -o "$dir/" k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager
cp -L "$etcd" "$dir/etcd"
