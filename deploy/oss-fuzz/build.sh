#!/bin/bash
# Builds every fuzz target of the tree for libFuzzer, with its committed inputs as a seed corpus. It
# runs in OSS-Fuzz's image, whose functions it calls, and changes the tree, so it wants one below $SRC.
# tools/ossfuzz has functions that do the same with the clang of this machine.
#
# Left out are targets in a package main or in a package of its own for tests, neither of which
# OSS-Fuzz can import: 'make fuzz-smoke' runs them.
set -euo pipefail

[[ $PWD/ == "${SRC:?}"/* ]] || {
	echo "build.sh changes the tree: it wants one below SRC=$SRC" >&2
	exit 1
}
# shellcheck source=/dev/null
. "${GO_UTILS:-/usr/local/bin/go_utils.sh}"
mkdir -p "$OUT"

# OSS-Fuzz replaces a file of package testing. Go refuses that in the module cache, where a toolchain
# is that it has fetched because the image's is older.
goroot=$(go env GOROOT)
if [[ $goroot == "$(go env GOMODCACHE)"/* ]]; then
	cp -r "$goroot" "$SRC/goroot"
	chmod -R u+rwX "$SRC/goroot"
	export GOROOT=$SRC/goroot GOTOOLCHAIN=local PATH=$SRC/goroot/bin:$PATH
fi
# The program that reads our packages has to be as new as the toolchain.
if [[ -d $SRC/go-118-fuzz-build ]]; then
	mkdir -p "$SRC/bin"
	(cd "$SRC/go-118-fuzz-build" && GOWORK=off GOFLAGS=-mod=mod go build -o "$SRC/bin/go-118-fuzz-build_v2" .)
	export PATH=$SRC/bin:$PATH
fi

# It compiles the tests of a package as a part of it: those of a package of their own do not go with it.
git grep -lE '^package [A-Za-z0-9_]+_test$' -- '*_test.go' | xargs rm
# No target is about devices: without them neither rdma-core's headers nor its libraries are needed.
git grep -lE '^//go:build .*\bcgo\b' -- '*.go' '*.c' |
	xargs sed -i -E '/^\/\/go:build /{s/\blinux && cgo\b/linux \&\& cgo \&\& !gofuzz/;s/!linux \|\| !cgo\b/!linux || !cgo || gofuzz/}'

# Code that tests generate becomes a part of their packages.
git grep -l '^//go:build !generated$' -- '*_test.go' | while read -r file; do
	package=$(dirname "$file")
	go test "./$package" -run='^TestGenerated$' -keep="$PWD/$package"
	rm "$file" "$package/overlay.json"
done
git grep -l '^//go:build generated$' -- '*_test.go' | xargs sed -i '/^\/\/go:build generated$/d'

# The functions read these.
export fuzzer_filename abs_file_dir

# corpus NAME DIR: Go's corpus files as what libFuzzer reads. Only targets that take one []byte have
# inputs that are the same for both.
corpus() {
	local name=$1 dir=$2 work file line
	work=$(mktemp -d)
	for file in "$dir"/*; do
		[[ -f $file && $(wc -l <"$file") -eq 2 ]] || continue
		line=$(tail -n 1 "$file")
		[[ $line == '[]byte("'*'")' ]] || continue
		line=${line#'[]byte("'}
		# What Go quotes, printf understands, but for runes beyond ASCII.
		[[ $line != *\\[uU]* ]] || continue
		line=${line%'")'}
		line=${line//%/%%}
		# shellcheck disable=SC2059 # it is a format
		printf "${line//\\\"/\"}" >"$work/${file##*/}"
	done
	if [[ -n $(ls -A "$work") ]]; then
		(cd "$work" && zip -q "$OUT/${name}_seed_corpus.zip" ./*)
	fi
	rm -rf "$work"
}

while IFS=: read -r file line; do
	function=${line#func }
	function=${function%%(*}
	package=$(sed -n 's/^package //p' "$file" | head -n 1)
	[[ $package != main && $package != *_test ]] || continue
	fuzzer_filename=$PWD/$file
	abs_file_dir=$(dirname "$fuzzer_filename")
	# One name may be in two packages.
	name=$(dirname "$file")
	name=${name//\//_}_$function
	# In the directory, as what is generated imports the package, which may be internal.
	cd "$abs_file_dir"
	build_native_go_fuzzer "$name" "$function" "$abs_file_dir" "$(go list -tags gofuzz .)"
	corpus "$name" "$abs_file_dir/testdata/fuzz/$function"
	# Some read files in the directory that they run in, which is $OUT then.
	if [[ -d testdata ]]; then
		tar -cf - --exclude=testdata/fuzz testdata | tar -C "$OUT" -xf -
	fi
	cd "$OLDPWD"
done < <(git grep -E '^func Fuzz[A-Za-z0-9_]*\(' -- '*_test.go')
