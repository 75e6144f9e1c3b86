module github.com/rpcrdma/rpcrdma/bench

go 1.26.0

require (
	github.com/bufbuild/protocompile v0.14.1
	github.com/cloudwego/shmipc-go v0.2.0
	github.com/containerd/ttrpc v1.2.10
	github.com/rpcrdma/rpcrdma v0.0.0-00010101000000-000000000000
	github.com/xdrpp/goxdr v0.1.3
	golang.org/x/sys v0.48.0
	gonum.org/v1/plot v0.17.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	codeberg.org/go-fonts/liberation v0.5.0 // indirect
	codeberg.org/go-latex/latex v0.2.0 // indirect
	codeberg.org/go-pdf/fpdf v0.11.1 // indirect
	git.sr.ht/~sbinet/gg v0.7.0 // indirect
	github.com/ajstarks/svgo v0.0.0-20211024235047-1546f124cd8b // indirect
	github.com/antlr/antlr4/runtime/Go/antlr v1.4.10 // indirect
	github.com/buildbarn/go-xdr v0.0.0-20261005144839-a2095890273e // indirect
	github.com/bytedance/gopkg v0.0.0-20220817015305-b879a72dc90f // indirect
	github.com/containerd/log v0.1.0 // indirect
	github.com/go-ole/go-ole v1.2.6 // indirect
	github.com/golang/freetype v0.0.0-20170609003504-e2365dfdc4a0 // indirect
	github.com/planetscale/vtprotobuf v0.6.1-0.20240319094008-0393e58bdf10 // indirect
	github.com/power-devops/perfstat v0.0.0-20210106213030-5aafc221ea8c // indirect
	github.com/rpcrdma/rpcrdma/grpcrdma v0.0.0-00010101000000-000000000000
	github.com/shirou/gopsutil/v3 v3.22.1 // indirect
	github.com/sirupsen/logrus v1.9.4 // indirect
	github.com/yusufpapurcu/wmi v1.2.2 // indirect
	golang.org/x/image v0.30.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sync v0.23.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
)

replace github.com/rpcrdma/rpcrdma => ..

replace github.com/rpcrdma/rpcrdma/grpcrdma => ../grpcrdma

tool (
	github.com/buildbarn/go-xdr/cmd/xdr_compiler
	github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto
	github.com/xdrpp/goxdr/cmd/goxdr
	google.golang.org/protobuf/cmd/protoc-gen-go
)
