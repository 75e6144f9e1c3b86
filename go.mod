module github.com/rpcrdma/rpcrdma

go 1.25.0
