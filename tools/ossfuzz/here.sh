# shellcheck shell=bash
# Takes the place of OSS-Fuzz's functions where there is a clang with libFuzzer, to see that every
# target is linked and runs:
#
#   git clone . /tmp/fuzz/rpcrdma && cd /tmp/fuzz/rpcrdma
#   SRC=/tmp/fuzz OUT=/tmp/fuzz/out GO_UTILS=tools/ossfuzz/here.sh deploy/oss-fuzz/build.sh
#
# The tests of a package become a part of it and package testing gets a function, as with OSS-Fuzz's
# program, without a change of the tree.

fuzz_here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")

# build_native_go_fuzzer NAME FUNCTION DIR IMPORT_PATH
build_native_go_fuzzer() {
	local work goroot file
	work=$(mktemp -d)
	goroot=$(go env GOROOT)
	sed 's/^\tswitch f.fstate.mode {$/\tif libFuzzerTypes != nil {\n\t\tlibFuzzerTypes(types)\n\t}\n&/' "$goroot/src/testing/fuzz.go" >"$work/fuzz.go"
	{
		printf '{"Replace": {\n"%s/src/testing/fuzz.go": "%s/fuzz.go"' "$goroot" "$work"
		printf ',\n"%s/src/testing/libfuzzer.go": "%s/libfuzzer.go.txt"' "$goroot" "$fuzz_here"
		for file in $(go list -tags libfuzzer,gofuzz -f '{{join .TestGoFiles " "}}' "$4"); do
			printf ',\n"%s/%s_libfuzzer.go": "%s/%s",\n"%s/%s": ""' "$3" "${file%_test.go}" "$3" "$file" "$3" "$file"
		done
		printf '\n}}\n'
	} >"$work/overlay.json"
	mkdir -p "$3/fuzz_main"
	cat >"$3/fuzz_main/main.go" <<END
package main

// #include <stddef.h>
import "C"

import (
	"sync"
	"testing"
	"unsafe"

	target "$4"
)

var run = sync.OnceValue(func() func([]byte) { return testing.LibFuzzer(target.$2) })

//export LLVMFuzzerTestOneInput
func LLVMFuzzerTestOneInput(data unsafe.Pointer, size C.size_t) C.int {
	run()(C.GoBytes(data, C.int(size)))
	return 0
}

func main() {}
END
	CGO_ENABLED=1 go build -buildvcs=false -trimpath -buildmode=c-archive -tags libfuzzer,gofuzz -gcflags=all=-d=libfuzzer \
		-overlay "$work/overlay.json" -o "$work/fuzz.a" "$3/fuzz_main"
	# shellcheck disable=SC2086 # several words
	${CXX:-clang++} ${CXXFLAGS:-} "${LIB_FUZZING_ENGINE:--fsanitize=fuzzer}" "$work/fuzz.a" -o "$OUT/$1"
	rm -r "$work" "$3/fuzz_main"
}
