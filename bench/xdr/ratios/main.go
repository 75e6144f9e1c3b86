// Command ratios makes a table of several runs of the benchmarks of bench/xdr, one after the other
// on standard input: how much more CPU time each codec takes than ours, as the median of the
// runs' ratios with quartiles, and its allocations.
//
//	go test ./bench/xdr -run=Generated -keep="$PWD/.bin/xdr"
//	for i in $(seq 40); do
//		go test -tags=generated -overlay=.bin/xdr/overlay.json -run='^$' -bench=. -benchtime=20ms ./bench/xdr
//	done | go run ./bench/xdr/ratios
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"regexp"
	"slices"
	"strconv"
)

func main() {
	log.SetFlags(0)
	if err := table(os.Stdout, os.Stdin); err != nil {
		log.Fatal(err)
	}
}

// line matches a line of a benchmark: direction, message, codec, cpu-ns/op, allocs/op.
var line = regexp.MustCompile(`^Benchmark(\w+)/message=(\w+)/codec=([\w-]+?)(?:-\d+)?\s+\d+\s.*\s([\d.]+) cpu-ns/op.*\s(\d+) allocs/op`)

// row holds the measurements of a message in one direction.
type row struct {
	name  string
	codec map[string]*column
}

// column holds the measurements of a codec.
type column struct {
	ns     []float64 // one for each run
	allocs string
}

// minRuns is how many runs are required for a meaningful median.
const minRuns = 10

func table(w io.Writer, r io.Reader) error {
	var rows []*row
	var codecs []string
	byName := make(map[string]*row)
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		m := line.FindStringSubmatch(scanner.Text())
		if m == nil {
			continue
		}
		name, codec := m[1]+" "+m[2], m[3]
		if byName[name] == nil {
			byName[name] = &row{name, make(map[string]*column)}
			rows = append(rows, byName[name])
		}
		if !slices.Contains(codecs, codec) {
			codecs = append(codecs, codec)
		}
		c := byName[name].codec[codec]
		if c == nil {
			c = new(column)
			byName[name].codec[codec] = c
		}
		ns, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			return err
		}
		c.ns, c.allocs = append(c.ns, ns), m[5]
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	if len(rows) == 0 || codecs[0] != "ours" {
		return errors.New("no benchmarks, or not ours first")
	}
	fmt.Fprint(w, "| |")
	for _, c := range codecs {
		fmt.Fprintf(w, " %s |", c)
	}
	fmt.Fprint(w, "\n|---|")
	for range codecs {
		fmt.Fprint(w, "---|")
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		ours := row.codec["ours"]
		if len(ours.ns) < minRuns {
			return fmt.Errorf("%s: %d runs, at least %d are wanted", row.name, len(ours.ns), minRuns)
		}
		fmt.Fprintf(w, "| %s | %s ns, %s |", row.name, short(quartile(ours.ns, 2)), ours.allocs)
		for _, name := range codecs[1:] {
			c := row.codec[name]
			if c == nil {
				fmt.Fprint(w, " |")
				continue
			}
			if len(c.ns) != len(ours.ns) {
				return fmt.Errorf("%s: %d runs of %s, %d of ours", row.name, len(c.ns), name, len(ours.ns))
			}
			ratios := make([]float64, len(c.ns))
			for i := range ratios {
				ratios[i] = c.ns[i] / ours.ns[i]
			}
			fmt.Fprintf(w, " %s (%s to %s), %s |", short(quartile(ratios, 2)), short(quartile(ratios, 1)), short(quartile(ratios, 3)), c.allocs)
		}
		fmt.Fprintln(w)
	}
	return nil
}

// quartile returns the first, second or third quartile.
func quartile(list []float64, n int) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[(len(list)-1)*n/4]
}

// short formats two digits, or all digits before the point.
func short(f float64) string {
	if f >= 10 {
		return strconv.Itoa(int(f + 0.5))
	}
	return strconv.FormatFloat(f, 'f', 1, 64)
}
