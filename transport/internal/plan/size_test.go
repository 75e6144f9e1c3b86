package plan

import (
	"math"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

func TestAgree(t *testing.T) {
	peer := func(send, recv int) *rpcrdma.PrivateData {
		return &rpcrdma.PrivateData{SendSize: send, RecvSize: recv}
	}
	for _, tt := range []struct {
		name string
		own  Sizes
		told bool
		peer *rpcrdma.PrivateData
		want Sizes
	}{
		{"PVT-4.2-4 PVT-4.2-5 the smaller of each end's", Sizes{4096, 16384}, true, peer(8192, 2048), Sizes{2048, 8192}},
		{"PVT-4.2-4 PVT-4.2-5 the smaller of each end's, the other way round", Sizes{4096, 2048}, true, peer(8192, 65536), Sizes{4096, 2048}},
		{"PVT-3.1-1 the thresholds crossed over", Sizes{1024, 4096}, true, peer(4096, 1024), Sizes{1024, 4096}},
		{"PVT-4.2-1 the largest there are", Sizes{262144, 262144}, true, peer(262144, 262144), Sizes{262144, 262144}},
		{"PVT-5.1-1 PVT-3.1-2 the peer has told nothing", Sizes{4096, 4096}, true, nil, Sizes{1024, 1024}},
		{"PVT-5.1-1 this end has told nothing: it receives 1024 bytes", Sizes{4096, 4096}, false, peer(8192, 8192), Sizes{4096, 1024}},
		{"PVT-5.1-1 neither has", Sizes{4096, 4096}, false, nil, Sizes{1024, 1024}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Agree(tt.own, tt.told, tt.peer); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestVersion2(t *testing.T) {
	for _, tt := range []struct {
		name   string
		agreed Sizes
		both   bool
		want   Sizes
	}{
		{"V2-2.3-3 V2-5.2-5 4096 bytes without private data", Sizes{1024, 1024}, false, Sizes{4096, 4096}},
		{"V2-2.3-3 what one end has told alone does not count", Sizes{8192, 8192}, false, Sizes{4096, 4096}},
		{"V2-2.3-2 private data may say more", Sizes{8192, 16384}, true, Sizes{8192, 16384}},
		{"V2-2.3-1 private data that says less lowers nothing", Sizes{1024, 2048}, true, Sizes{4096, 4096}},
		{"V2-2.1-1 each threshold for itself", Sizes{1024, 8192}, true, Sizes{4096, 8192}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Version2(tt.agreed, tt.both); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestRaised(t *testing.T) {
	props := func(send, recv uint32) rpcrdma.Properties {
		return rpcrdma.Properties{SendSize: send, RecvSize: recv}
	}
	for _, tt := range []struct {
		name      string
		now       Sizes
		own, peer rpcrdma.Properties
		want      Sizes
	}{
		{"V2-2.3-2 the smaller of each end's", Sizes{4096, 4096}, props(16384, 65536), props(32768, 8192), Sizes{8192, 32768}},
		{"V2-2.1-1 the thresholds crossed over", Sizes{4096, 4096}, props(4096, 16384), props(16384, 4096), Sizes{4096, 16384}},
		{"V2-2.3-1 none is lowered", Sizes{16384, 8192}, props(4096, 4096), props(4096, 4096), Sizes{16384, 8192}},
		{"the largest that the wire can say", Sizes{4096, 4096}, props(math.MaxUint32, math.MaxUint32), props(math.MaxUint32, 8192), Sizes{8192, math.MaxInt32}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Raised(tt.now, tt.own, tt.peer); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestConfigured(t *testing.T) {
	for _, tt := range []struct {
		name string
		own  Sizes
		most uint32
		want Sizes
	}{
		{"the peer receives less", Sizes{4096, 8192}, 2048, Sizes{2048, 8192}},
		{"the peer receives more", Sizes{4096, 8192}, 8192, Sizes{4096, 8192}},
		{"the largest that the wire can say", Sizes{4096, 8192}, math.MaxUint32, Sizes{4096, 8192}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Configured(tt.own, tt.most); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}
