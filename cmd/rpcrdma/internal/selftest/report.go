package selftest

import (
	"encoding/json"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
)

// Schema is the version of the report format, which tools/support reads.
const Schema = 1

// Outcomes of checks.
const (
	Passed  = "passed"
	Failed  = "failed"
	Skipped = "skipped"
)

// A Report is the output of selftest. It contains no address and no name of the machine, its network or its devices.
type Report struct {
	Schema  int      `json:"schema"`
	Date    string   `json:"date"` // YYYY-MM-DD
	Version string   `json:"version"`
	Adapter Adapter  `json:"adapter"`
	System  System   `json:"system"`
	Peer    bool     `json:"peer"` // calls to another machine were made too
	Results []Result `json:"results"`
}

// An Adapter is the tested device.
type Adapter struct {
	Driver       string                 `json:"driver"`    // as in `rpcrdma devices`: iwarp, or a kernel module
	Transport    string                 `json:"transport"` // infiniband, roce, iwarp
	VendorID     uint32                 `json:"vendor_id,omitempty"`
	VendorPartID uint32                 `json:"vendor_part_id,omitempty"`
	Firmware     string                 `json:"firmware,omitempty"`
	MTU          int                    `json:"mtu,omitempty"` // bytes
	LinkLayer    string                 `json:"link_layer,omitempty"`
	Limits       *provider.Capabilities `json:"limits,omitempty"`
}

// A System is where the adapter was tested.
type System struct {
	Kernel string `json:"kernel"` // release
	Go     string `json:"go"`     // version and platform
	CPUs   int    `json:"cpus"`
}

// A Result is the result of a check.
type Result struct {
	Name    string             `json:"name"`
	Outcome string             `json:"outcome"`       // Passed, Failed or Skipped
	Why     string             `json:"why,omitempty"` // why it has not passed
	Seconds float64            `json:"seconds"`
	Figures map[string]float64 `json:"figures,omitempty"` // by name, which ends in the unit
}

func round(f float64) float64 { return math.Round(f*1000) / 1000 }

// count returns the number of results with an outcome.
func (r *Report) count(outcome string) (n int) {
	for i := range r.Results {
		if r.Results[i].Outcome == outcome {
			n++
		}
	}
	return n
}

// longestWhy limits the text of a failure.
const longestWhy = 2000

// addresses matches the addresses that an error may contain: of IP with or without a port, a GID, a GUID, a MAC.
var addresses = regexp.MustCompile(`\[?\b[0-9a-fA-F]{0,4}(:[0-9a-fA-F]{0,4}){2,7}(%\w+)?\]?(:\d+)?|\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b`) // immutable

// scrub removes addresses and the given names from the texts of a report.
func (r *Report) scrub(names []string) {
	for i := range r.Results {
		why := &r.Results[i].Why
		*why = addresses.ReplaceAllString(*why, "ADDRESS")
		for _, name := range names {
			if name != "" {
				*why = strings.ReplaceAll(*why, name, "NAME")
			}
		}
		if len(*why) > longestWhy {
			*why = strings.ToValidUTF8((*why)[:longestWhy], "") + "..."
		}
	}
}

// encode returns the JSON of a report.
func (r *Report) encode() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "  ")
	return append(b, '\n'), err
}

func today() string { return time.Now().UTC().Format(time.DateOnly) }
