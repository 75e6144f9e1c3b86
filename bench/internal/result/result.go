// Package result defines the results of measurements: their provenance, values, goals, and how
// they are printed.
//
// A measurement that was disturbed is marked: it neither reaches a goal nor misses a floor.
package result

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"time"
)

// Format is the version of a file of results.
const Format = 1

// A File holds the results of one run.
type File struct {
	Format        int            `json:"format"`
	Title         string         `json:"title"`
	Provenance    Provenance     `json:"provenance"`
	Pairs         []Pair         `json:"pairs,omitempty"`
	Values        []Value        `json:"values,omitempty"`
	Sweeps        []Sweep        `json:"sweeps,omitempty"`
	Distributions []Distribution `json:"distributions,omitempty"`
	Benchmarks    []Benchmark    `json:"benchmarks,omitempty"`
	Missing       []Missing      `json:"missing,omitempty"`
	Failed        []Failed       `json:"failed,omitempty"`
}

// Provenance is the origin of results.
type Provenance struct {
	Date     time.Time     `json:"date"`
	Commit   string        `json:"commit"`
	Machine  string        `json:"machine"` // CPU model and number of CPUs
	Kernel   string        `json:"kernel"`
	Go       string        `json:"go"` // version, platform, GOMAXPROCS
	Modules  []string      `json:"modules,omitempty"`
	Devices  []string      `json:"devices,omitempty"` // RDMA devices, with the MTU of what they are on
	Load     [2]string     `json:"load"`              // load averages of one minute, before and after
	Idle     Float         `json:"others"`            // CPUs that other processes used in the second before
	Busy     bool          `json:"busy,omitempty"`    // too many CPUs were used by others
	Command  string        `json:"command"`
	Rounds   int           `json:"rounds"`
	Run      time.Duration `json:"run_ns"`
	Duration time.Duration `json:"duration_ns"`
}

// Tolerance is the permitted deviation of a control from 1.
const Tolerance = 0.08

// Kind is the quantity that is compared.
type Kind string

const (
	// Time per call: the smaller the ratio, the better is A.
	Time Kind = "time"
	// Rate, of calls or, where both sides move payload, of bytes: the larger the
	// ratio, the better is A.
	Rate Kind = "rate"
)

// Verdict is the result of a comparison with floor and goal.
type Verdict string

// The verdicts.
const (
	None      Verdict = ""             // neither floor nor goal
	Disturbed Verdict = "disturbed"    // measure again
	Below     Verdict = "below floor"  //
	Above     Verdict = "above floor"  // and below the goal
	Reached   Verdict = "goal reached" //
)

// judge compares a number with limits. A limit of 0 means none, unless zero is set.
func judge(v float64, smaller bool, floor, goal float64, zero bool) Verdict {
	reached := func(limit float64) bool {
		if smaller {
			return v <= limit
		}
		return v >= limit
	}
	switch {
	case (floor != 0 || zero) && !reached(floor):
		return Below
	case (goal != 0 || zero) && reached(goal):
		return Reached
	case floor != 0 || goal != 0 || zero:
		return Above
	}
	return None
}

// A Float is a number that may be NaN, which is null in JSON.
type Float float64

// MarshalJSON implements json.Marshaler.
func (f Float) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(f))
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Float) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*f = Float(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(f))
}

// A Pair is a comparison, A over B.
type Pair struct {
	ID   string `json:"id"`
	Goal int    `json:"goal_number,omitempty"` // one of [Goals]; 0: none
	What string `json:"what"`
	Kind Kind   `json:"kind"`
	Of   string `json:"of,omitempty"` // compared instead of the mean: p99, or p99/p50 of A alone

	A  string `json:"a"`
	B  string `json:"b"`            // the best of several
	Bs int    `json:"bs,omitempty"` // number of alternatives in B

	Floor Float `json:"floor,omitempty"` // required and desired ratios; 0: none
	Want  Float `json:"goal,omitempty"`

	TimeA  time.Duration `json:"time_a_ns"` // per call, medians
	TimeB  time.Duration `json:"time_b_ns"`
	BytesA int           `json:"bytes_a,omitempty"` // payload of a call
	BytesB int           `json:"bytes_b,omitempty"`

	Ratio    Float `json:"ratio"` // median of the rounds
	Low      Float `json:"low"`   // first quartile
	High     Float `json:"high"`  // third quartile
	Control  Float `json:"control"`
	CPURatio Float `json:"cpu"`    // of CPU time per call, or per byte
	Others   Float `json:"others"` // CPUs that others used meanwhile; null: unknown

	Crowded bool `json:"crowded,omitempty"` // too many CPUs were used by others
	Busy    bool `json:"busy,omitempty"`    // the whole run is disturbed
	Again   int  `json:"again,omitempty"`   // how often it was measured again after a disturbance
}

// Disturbed reports whether the ratio is unreliable.
func (p *Pair) Disturbed() bool {
	return p.Busy || p.Crowded || !(math.Abs(float64(p.Control)-1) <= Tolerance)
}

// Verdict judges the ratio.
func (p *Pair) Verdict() Verdict {
	if p.Disturbed() {
		return Disturbed
	}
	return judge(float64(p.Ratio), p.Kind == Time, float64(p.Floor), float64(p.Want), false)
}

// A Value is a number that is not a ratio of times, such as an exact count.
type Value struct {
	ID     string `json:"id"`
	Goal   int    `json:"goal_number,omitempty"`
	What   string `json:"what"`
	Unit   string `json:"unit"`
	Value  Float  `json:"value"`
	Low    Float  `json:"low,omitempty"` // spread, if known
	High   Float  `json:"high,omitempty"`
	Floor  Float  `json:"floor,omitempty"`
	Want   Float  `json:"goal,omitempty"`
	Judged bool   `json:"judged,omitempty"` // there are limits, one of which may be 0
	Exact  bool   `json:"exact,omitempty"`  // a count, which cannot be disturbed
	Busy   bool   `json:"busy,omitempty"`   // the measurement was disturbed
}

// Verdict judges the value: smaller is better.
func (v *Value) Verdict() Verdict {
	if v.Busy && !v.Exact {
		return Disturbed
	}
	if !v.Judged {
		return None
	}
	return judge(float64(v.Value), true, float64(v.Floor), float64(v.Want), true)
}

// A Sweep is a cost as a function of a parameter.
type Sweep struct {
	ID      string  `json:"id"`
	What    string  `json:"what"`
	X       string  `json:"x"`    // size, depth, conns or procs
	Show    string  `json:"show"` // time, calls or bytes
	Control Float   `json:"control"`
	Crowded bool    `json:"crowded,omitempty"`
	Busy    bool    `json:"busy,omitempty"`
	Again   int     `json:"again,omitempty"` // see Pair
	Points  []Point `json:"points"`
}

// Disturbed reports whether the points are unreliable.
func (s *Sweep) Disturbed() bool {
	return s.Busy || s.Crowded || !(math.Abs(float64(s.Control)-1) <= Tolerance)
}

// A Point is a point of a sweep.
type Point struct {
	Series string        `json:"series"`
	X      int           `json:"x"`
	Bytes  int           `json:"bytes,omitempty"` // of a call
	Time   time.Duration `json:"time_ns"`         // per call, the median of the rounds
	Low    time.Duration `json:"low_ns"`          // first quartile
	High   time.Duration `json:"high_ns"`         // third quartile
}

// Value returns the value of the point that the sweep shows: microseconds, calls or bytes per
// second.
func (s *Sweep) Value(p *Point) float64 {
	seconds := p.Time.Seconds()
	switch s.Show {
	case "calls":
		return 1 / seconds
	case "bytes":
		return float64(p.Bytes) / seconds
	}
	return seconds * 1e6
}

// A Distribution holds the times of single calls.
type Distribution struct {
	ID      string             `json:"id"`
	What    string             `json:"what"`
	Crowded bool               `json:"crowded,omitempty"`
	Busy    bool               `json:"busy,omitempty"`
	Series  []DistributionLine `json:"series"`
}

// A DistributionLine is the distribution of one workload.
type DistributionLine struct {
	Name      string     `json:"name"`
	Calls     int        `json:"calls"`
	Quantiles []Quantile `json:"quantiles"`
}

// A Quantile is the time that the fraction P of all calls did not exceed.
type Quantile struct {
	P    float64       `json:"p"`
	Time time.Duration `json:"ns"`
}

// A Benchmark holds the results of a benchmark, from all its lines in the output of go test -bench.
type Benchmark struct {
	Name    string            `json:"name"` // without the GOMAXPROCS suffix
	Procs   int               `json:"procs"`
	Runs    int               `json:"runs"`
	Metrics map[string]Spread `json:"metrics"` // by unit
	Labels  map[string]string `json:"labels,omitempty"`
	Keys    map[string]string `json:"keys,omitempty"`
}

// A Spread is the median of several numbers, and their quartiles.
type Spread struct {
	Median Float `json:"median"`
	Low    Float `json:"low"`
	High   Float `json:"high"`
}

// A Missing is a goal that was not measured, and the reason.
type Missing struct {
	Goal int    `json:"goal_number"`
	Why  string `json:"why"`
}

// A Failed is a row that could not be measured.
type Failed struct {
	ID     string `json:"id"`
	What   string `json:"what"`
	Why    string `json:"why"`
	Output string `json:"output,omitempty"` // file with the output
}

// Load reads a file of results.
func Load(name string) (*File, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	f := new(File)
	if err := json.Unmarshal(b, f); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if f.Format != Format {
		return nil, fmt.Errorf("%s: format %d, want %d", name, f.Format, Format)
	}
	return f, nil
}

// Save writes the file.
func (f *File) Save(name string) error {
	f.Format = Format
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}

// SetValue replaces the value with the same ID, or adds it.
func (f *File) SetValue(v Value) {
	for i := range f.Values {
		if f.Values[i].ID == v.ID {
			f.Values[i] = v
			return
		}
	}
	f.Values = append(f.Values, v)
}

// A Breach is a missed floor in an undisturbed measurement.
type Breach struct {
	ID           string
	Value, Floor float64
}

// Breaches returns the missed floors.
func (f *File) Breaches() []Breach {
	var list []Breach
	for i := range f.Pairs {
		if p := &f.Pairs[i]; p.Verdict() == Below {
			list = append(list, Breach{p.ID, float64(p.Ratio), float64(p.Floor)})
		}
	}
	for i := range f.Values {
		if v := &f.Values[i]; v.Verdict() == Below {
			list = append(list, Breach{v.ID, float64(v.Value), float64(v.Floor)})
		}
	}
	return list
}

// Enough is the number of rounds that a quotable result needs.
const Enough = 10

// MarkBusy marks all results as disturbed if the run was disturbed or too short.
func (f *File) MarkBusy() {
	if !f.Provenance.Busy && f.Provenance.Rounds >= Enough {
		return
	}
	for i := range f.Pairs {
		f.Pairs[i].Busy = true
	}
	for i := range f.Values {
		f.Values[i].Busy = true
	}
	for i := range f.Sweeps {
		f.Sweeps[i].Busy = true
	}
	for i := range f.Distributions {
		f.Distributions[i].Busy = true
	}
}

// Names formats a list of breaches.
func Names(list []Breach) string {
	var words []string
	for _, b := range list {
		words = append(words, fmt.Sprintf("%s (%.2f, floor %.2f)", b.ID, b.Value, b.Floor))
	}
	return strings.Join(words, ", ")
}
