package plan

import (
	"math"
	"testing"
)

func TestRaise(t *testing.T) {
	for _, tt := range []struct {
		name  string
		load  Load
		asked uint32
		want  int
	}{
		{"V1-3.3-5 more than half in use: twice as many", Load{Posted: 20, Executing: 11, Most: 100}, 100, 40},
		{"half in use: as many", Load{Posted: 20, Executing: 10, Most: 100}, 100, 20},
		{"a few calls, all in use: sixteen", Load{Posted: 4, Executing: 3, Most: 100}, 100, 16},
		{"the first call in use: sixteen", Load{Posted: 1, Executing: 1, Most: 100}, 100, 16},
		{"nothing in use", Load{Posted: 1, Most: 100}, 100, 1},
		{"V1-3.3-1 no more than the peer asks for", Load{Posted: 8, Executing: 8, Most: 100}, 10, 10},
		{"V1-3.3-2 not fewer, if the peer asks for fewer now", Load{Posted: 8, Executing: 8, Most: 100}, 5, 8},
		{"V1-3.3-2 not fewer, if the peer asks for none", Load{Posted: 8, Executing: 8, Most: 100}, 0, 8},
		{"no more than the configuration allows", Load{Posted: 8, Executing: 8, Most: 12}, 100, 12},
		{"at what the configuration allows", Load{Posted: 12, Executing: 12, Most: 12}, 100, 12},
		{"a peer that asks for all there is", Load{Posted: 8, Executing: 8, Most: 100}, math.MaxUint32, 16},
		{"calls wait for memory", Load{Posted: 8, Executing: 8, Waiting: 1, Most: 100}, 100, 8},
		{"all connections take too much memory", Load{Posted: 8, Executing: 8, Most: 100, Crowded: true}, 100, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.load.Raise(tt.asked); got != tt.want {
				t.Errorf("%d receives, want %d", got, tt.want)
			}
		})
	}
}

func TestGrant(t *testing.T) {
	for _, tt := range []struct {
		name                          string
		posted, waiting, halved, want int
	}{
		{"V1-3.3-3 as many as there are receives", 32, 0, 0, 32},
		{"V1-3.3-5 a quarter while calls wait for memory", 32, 1, 0, 8},
		{"V1-3.3-5 a quarter however many wait", 32, 100, 0, 8},
		{"V1-3.3-4 V1-3.3-8 never none", 3, 1, 0, 1},
		{"V1-3.3-8 one of one", 1, 1, 0, 1},
		{"V1-3.3-5 half while calls wait for processors", 128, 0, 1, 64},
		{"V1-3.3-5 half of half", 128, 0, 2, 32},
		{"not less than share wake-ups well", 128, 0, 20, LeastPaced},
		{"not less than there are receives, if these are fewer", 10, 0, 3, 10},
		{"V1-3.3-5 calls wait for both: processors are scarcer", 1024, 1, 4, 64},
		{"V1-3.3-5 calls wait for both: memory is scarcer", 1024, 1, 1, 256},
	} {
		t.Run(tt.name, func(t *testing.T) {
			load := Load{Posted: tt.posted, Waiting: tt.waiting, Halved: tt.halved}
			if got := load.Grant(); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

func TestAccepted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		credit uint32
		want   int
	}{
		{"V1-3.3-8 zero counts as one", 0, 1},
		{"CTX-8166-1 one", 1, 1},
		{"V1-3.3-3 the grant is absolute", 20, 20},
		{"V1-3.3-1 all that was asked for", 32, 32},
		{"V1-3.3-1 one more than was asked for", 33, 32},
		{"the largest there is", math.MaxUint32, 32},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Accepted(tt.credit, 32); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

func TestExchanges(t *testing.T) {
	for _, tt := range []struct {
		name                       string
		posted, slack, depth, want int
	}{
		{"V1-3.3-7 a call executing and one on its way for each receive", 32, 0, 0, 64},
		{"receives to spare", 32, 2, 0, 66},
		{"replies whose Sends have not completed", 32, 2, 16, 82},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Exchanges(tt.posted, tt.slack, tt.depth); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

// TestTakes: an end without credits accepts as many calls as are allowed. While memory is crowded, it
// accepts at most as many at once as it has had, but those that every connection may have.
func TestTakes(t *testing.T) {
	for _, tt := range []struct {
		load Load
		want bool
	}{
		{Load{Executing: 0, Posted: 0, Most: 1}, true},
		{Load{Executing: 1, Posted: 1, Most: 1}, false},
		{Load{Executing: 7, Posted: 7, Most: 8}, true},
		{Load{Executing: 7, Posted: 7, Most: 8, Crowded: true}, false},
		{Load{Executing: 6, Posted: 7, Most: 8, Crowded: true}, true},
		{Load{Executing: Start - 1, Posted: Start - 1, Most: 8, Crowded: true}, true},
		{Load{Executing: Start, Posted: Start, Most: 8, Crowded: true}, false},
	} {
		if got := tt.load.Takes(); got != tt.want {
			t.Errorf("%+v takes a call: %v", tt.load, got)
		}
	}
}
