# make help lists the targets. Each of them installs what it needs and this
# machine lacks, through scripts/setup.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# What runs at the same time in users' programs is tested with the race detector; the rest, compilers, tools and
# programs around the tests, without it.
RACED := $(addsuffix /...,$(addprefix ./,transport nfs iwarp shm fabric cgo ibv rdmacm rpc rpc/otelrpc rpc/promrpc rpc/rpcsec/krb5 grpcrdma cmd/rpcrdma \
	internal/baton internal/connset internal/limited internal/lockorder internal/pollfd internal/testing/leak internal/testing/simfabric \
	internal/xdrgen/golden/service))
# Tests that build programs, or measure: make test-long has them.
SLOW := bench/instructions bench/ratio bench/xdr examples grpcrdma/examples/hello internal/testing/interop/rpcgen tools/licenses tools/mutate tools/ossfuzz tools/release tools/support
# The packages that never need cgo, as far as they are built.
PURE := $(addsuffix /...,$(wildcard proto fabric iwarp transport rpc rpc/otelrpc rpc/promrpc rpc/rpcsec/krb5 grpcrdma nfs examples cmd/rpcrdma/internal/loadgen cmd/rpcrdma/internal/notify internal/xdrgen))
# The packages whose tests take longest come first, so that none of them is left to run alone at the end.
LONG := $(addprefix ./,transport cmd/rpcrdma nfs/nfsd/dirfs iwarp fabric/fabrictest internal/testing/simfabric)
LONG_PURE := $(addprefix ./,transport nfs/nfsd/dirfs iwarp fabric/fabrictest internal/xdrgen/gen)
# The packages with benchmarks.
BENCHMARKS = $(sort $(dir $(shell grep -rl --include='*_test.go' '^func Benchmark' .)))
# Many tests wait for a disk or a peer: one package more than there are processors.
TEST_P ?= -p=$(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
# A file system in memory for the temporary files of a pass, where there is one with room that runs programs.
IN_MEMORY = $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null && \
	! grep -q '^[^ ]* /dev/shm [^ ]* [^ ]*noexec' /proc/mounts && echo TMPDIR=/dev/shm GOTMPDIR=/dev/shm)
# The race detector lets each program wait a second at its end, and tests run hundreds of them. A race that it has
# seen by then is reported all the same.
export GORACE ?= atexit_sleep_ms=0

TEST_TIMEOUT ?= 15m
FUZZ_INPUTS ?= 20000
BENCH_FLAGS ?=
# Where the benchmarks leave their page, plots and data: .bin/bench, .bin/bench-rdma.
BENCH_OUT ?=
TEST_RDMA_FLAGS ?=
# make mutate RUN=iwarp SAMPLE=10 SEED=7 J=2: which defects, how many of them, chosen by what, at a time.
RUN ?=
SAMPLE ?=
SEED ?=
J ?=
MUTATE_FLAGS ?=
SOAK_FLAGS ?=
CONTAINER_TEST_FLAGS ?=

.PHONY: help
help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  make %-15s %s\n' "$$name" "$$text"; done

.PHONY: demo
demo: ## run the main job once and show it: no RDMA hardware needed
	@scripts/setup demo
	@scripts/demo

.PHONY: test
test: ## every test, once, and exact allocation counts
	@scripts/setup test
	go test -race -vet=off -shuffle=on $(TEST_P) -timeout=$(TEST_TIMEOUT) $(LONG) $(RACED)
	$(IN_MEMORY) go test -vet=off $(TEST_P) -timeout=$(TEST_TIMEOUT) $$(go list work | grep -vxFf <(go list $(RACED) $(addprefix ./,$(SLOW))))
	go test -vet=off -run=Alloc -timeout=$(TEST_TIMEOUT) $(RACED) | grep -v 'no test'

.PHONY: test-long
test-long: ## what make test leaves out: builds, defects, benchmarks; and the tests without cgo and the race detector
	@scripts/setup test
	CGO_ENABLED=0 $(IN_MEMORY) go test -vet=off $(TEST_P) -timeout=$(TEST_TIMEOUT) $(LONG_PURE) $(addprefix ./,$(PURE))
	CGO_ENABLED=0 go build -buildvcs=false -o /dev/null ./cmd/rpcrdma
	go test -vet=off -timeout=$(TEST_TIMEOUT) $(addprefix ./,$(SLOW))
	go test -vet=off -run='^$$' -bench=. -benchtime=1x -timeout=$(TEST_TIMEOUT) $(BENCHMARKS) >/dev/null

.PHONY: test-rdma
test-rdma: ## the tests with RDMA devices: this machine's, or a virtual machine's
	@scripts/setup test-rdma
	@scripts/test-rdma $(TEST_RDMA_FLAGS)
	$(if $(TEST_RDMA_FLAGS),,@scripts/test-rdma --nfsd --filter TestRDMALinux ./cmd/rpcrdma ./nfs/nfs41)

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, go mod tidy, shellcheck, the project's own rules
	@scripts/setup lint
	@scripts/lint

.PHONY: bench
bench: OUT = $(or $(BENCH_OUT),.bin/bench)
bench: ## measure against the alternatives, interleaved, and print the ratios; within 10 minutes
	@scripts/setup bench
	@mkdir -p $(OUT)
	@rm -f $(OUT)/results.json
	export CGO_ENABLED=0; status=0; go run ./bench/ratio -budget 7m -json $(OUT)/results.json $(BENCH_FLAGS) || status=1; \
	go run ./bench/report -o $(OUT) -recorded docs/reports/bench $(OUT)/results.json || status=1; \
	if [[ $(OUT) == docs/reports/bench/* ]]; then go run ./bench/report -machines docs/reports/bench || status=1; fi; \
	echo 'bench: the page with plots and goals is $(OUT)/README.md'; exit $$status

.PHONY: bench-rdma
bench-rdma: OUT = $(or $(BENCH_OUT),.bin/bench-rdma)
bench-rdma: ON = $(if $(RPCRDMA_RXE_ADDR)$(RPCRDMA_SIW_ADDR)$(RPCRDMA_HW_ADDR),-rdma,-vm)
bench-rdma: ## the same on RDMA devices: this machine's, or a virtual machine's; within 20 minutes
	@scripts/setup test-rdma
	@$(MAKE) --no-print-directory -C bench/cverbs
	@mkdir -p $(OUT)
	@rm -f $(OUT)/results.json
	status=0; go run ./bench/ratio $(ON) -rounds 10 -time 100ms -budget 13m -json $(OUT)/results.json $(BENCH_FLAGS) || status=1; \
	go run ./bench/report -o $(OUT) -recorded docs/reports/bench $(OUT)/results.json || status=1; \
	if [[ $(OUT) == docs/reports/bench/* ]]; then go run ./bench/report -machines docs/reports/bench || status=1; fi; \
	echo 'bench-rdma: the page with plots and goals is $(OUT)/README.md'; exit $$status

.PHONY: bench-machines
bench-machines: ## write docs/reports/bench/machines.md anew: the ratios of all machines whose results are there
	@scripts/setup bench
	CGO_ENABLED=0 go run ./bench/report -machines docs/reports/bench

.PHONY: instructions
instructions: ## count the instructions of a call, and record them in docs/reports/bench/instructions.md
	@scripts/setup instructions
	go run ./bench/instructions -record

.PHONY: instructions-rdma
instructions-rdma: ## the same with RDMA devices, in a virtual machine, with the kernel's instructions
	@scripts/setup test-rdma instructions
	@$(MAKE) --no-print-directory -C bench/cverbs
	go run ./bench/instructions -devices -record

.PHONY: locks
locks: ## measure the locks of a call: how often, how long, who waits; written to docs/reports/bench/locks.md
	@scripts/setup bench
	go run ./bench/locks -o docs/reports/bench/locks.md

.PHONY: race
race: ## the tests five times over with the race detector, to shake out flakes
	@scripts/setup test
	go test -race -shuffle=on -count=5 -timeout=$(TEST_TIMEOUT) work

.PHONY: fuzz-smoke
fuzz-smoke: ## every fuzz target for a moment
	@scripts/setup test
	@scripts/fuzz-smoke $(FUZZ_INPUTS)

# make simulate SEEDS=1000 FIRST=1 WORKERS=2, or SCRIPT=file, VERBOSE=1: which histories, by how many processes.
SEEDS ?= 100000
FIRST ?= 1
WORKERS ?= 2
.PHONY: simulate
simulate: ## client and server in simulated histories, each against a model: SEEDS=n FIRST=n VERBOSE=1 replays one
	@scripts/setup test
	CGO_ENABLED=0 go test -C transport -count=1 -timeout=0 -run='^TestSimulation$$' -first=$(FIRST) -seeds=$(SEEDS) \
		$(if $(SCRIPT),-script=$(abspath $(SCRIPT))) $(if $(VERBOSE),-history,-workers=$(WORKERS))

.PHONY: mutate
mutate: ## put each known defect into a copy, and want the test that it names to fail: some 10 s each
	@scripts/setup mutate
	go run ./tools/mutate $(if $(RUN),-run '$(RUN)') $(if $(SAMPLE),-sample $(SAMPLE)) $(if $(SEED),-seed $(SEED)) $(if $(J),-j $(J)) $(MUTATE_FLAGS)

.PHONY: mutate-sample
mutate-sample: ## the same with some of them, by chance, within 3 minutes
	@scripts/setup mutate
	go run ./tools/mutate -sample 12 -budget 3m

.PHONY: sanitize
sanitize: ## what touches C, with ASan, UBSan, cgocheck2 and checkptr
	@scripts/setup test
	go run ./tools/sanitize

.PHONY: sanitize-rdma
sanitize-rdma: ## the same with RDMA devices: this machine's, or a virtual machine's
	@scripts/setup test-rdma
	go run ./tools/sanitize -rdma

.PHONY: soak
soak: MINUTES = 30
soak: ## mixed calls for MINUTES=30 while peers come, go and are killed: all replies right, all resources flat
	@scripts/setup test
	go run ./tools/soak -time $(MINUTES)m $(SOAK_FLAGS)

.PHONY: soak-rdma
soak-rdma: MINUTES = 10
soak-rdma: ON = $(if $(RPCRDMA_RXE_ADDR)$(RPCRDMA_SIW_ADDR),-rdma,-vm)
soak-rdma: ## the same for MINUTES=10 on RDMA devices, which are removed, cut off and lose packets
	@scripts/setup test-rdma
	go run ./tools/soak $(ON) -time $(MINUTES)m $(SOAK_FLAGS)

.PHONY: soak-short
soak-short: ## make soak for a minute
	@scripts/setup test
	go run ./tools/soak -time 1m

.PHONY: generate
generate: ## write anew what is generated from .x and .proto files, and the listings of the API in docs/api
	go generate ./... ./grpcrdma/...
	go run ./tools/api -w

.PHONY: xdrgen-published
xdrgen-published: ## compile published .x files with xdrgen; needs the network
	@scripts/setup xdrgen-published
	@scripts/xdrgen-published

.PHONY: build
build: ## build every package, and the command into .bin/
	@scripts/setup release
	go build work
	go build -o .bin/ ./cmd/rpcrdma

.PHONY: build-matrix
build-matrix: ## what users build: with and without cgo, without rdma-core's headers, elsewhere
	@scripts/setup test
	@scripts/build-matrix

.PHONY: test-oldest
test-oldest: ## the library alone, with the oldest Go that its go.mod allows
	@scripts/setup test
	GOWORK=off GOTOOLCHAIN=go$$(sed -n 's/^go //p' go.mod) go vet ./...
	GOWORK=off GOTOOLCHAIN=go$$(sed -n 's/^go //p' go.mod) go test -timeout=$(TEST_TIMEOUT) $(addprefix ./,$(filter-out cmd/rpcrdma/% grpcrdma/% rpc/otelrpc/% rpc/promrpc/% rpc/rpcsec/krb5/%,$(PURE)))

.PHONY: interop
interop: ## against programs of others: Wireshark's dissectors, C of rpcgen, gRPC in Python and C++, a browser, and rping in a virtual machine
	@scripts/setup interop
	go test -timeout=$(TEST_TIMEOUT) -run='InBrowser|OperatingPage' ./cmd/rpcrdma
	RPCRDMA_REQUIRE=grpc go test -timeout=$(TEST_TIMEOUT) -run=Languages ./cmd/rpcrdma/internal/grpcproxy
	RPCRDMA_REQUIRE=kdc,rpcgen go test -race -timeout=$(TEST_TIMEOUT) ./rpc/rpcsec/krb5
	RPCRDMA_REQUIRE=kdc go test -timeout=$(TEST_TIMEOUT) -run=TestKerberos ./examples
	RPCRDMA_REQUIRE=rpcgen go test -race -timeout=$(TEST_TIMEOUT) ./internal/testing/interop/...
	@scripts/test-rdma ./internal/testing/interop/...

.PHONY: bench-smoke
bench-smoke: ## every benchmark once, to see that it runs: its numbers mean nothing
	@scripts/setup bench test instructions
	go test -run='^$$' -bench=. -benchtime=1x -timeout=$(TEST_TIMEOUT) $(BENCHMARKS)
	RPCRDMA_REQUIRE=instructions go test -timeout=$(TEST_TIMEOUT) ./bench/instructions
	go run ./bench/locks >/dev/null
	go run ./bench/ratio -rounds 1 -time 1ms

.PHONY: vulncheck
vulncheck: ## known vulnerabilities in what we call; needs the network
	@scripts/setup test
	@scripts/vulncheck

.PHONY: container-test
container-test: ## build the container images and test them, as far as this machine allows
	@scripts/setup container-test
	@scripts/container-test $(CONTAINER_TEST_FLAGS)

.PHONY: release
release: ## the command for other systems, packages, what is in it, and checksums, into .bin/release/
	@scripts/setup release
	@scripts/release

.PHONY: release-test
release-test: ## install this tree as a user would, from a module proxy of files
	@scripts/setup release-test
	go run ./tools/release test

.PHONY: package-test
package-test: ## install, start, use and remove the packages of make release, in a container with systemd
	@scripts/setup container-test
	@scripts/package-test
	@scripts/package-test --rpm

.PHONY: reproducible
reproducible: ## make the release twice, in different directories, and compare the checksums
	@scripts/setup release
	@scripts/reproducible

.PHONY: publish
publish: ## hand what make release has made to the host of the repository
	@scripts/release --publish
