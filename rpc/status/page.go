package status

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// fresh is how long a page is served again without building a new one.
const fresh = time.Second

// A page caches the latest responses.
type page struct {
	mu       sync.Mutex // held while a page is built: concurrent requests get the same one
	made     time.Time
	snapshot *Snapshot
	json     []byte // nil: not requested since
	html     map[view][]byte
}

// A view is one of the pages of a Snapshot.
type view struct {
	sort    string // a key of orders
	refresh int    // seconds; 0: never
}

// maxViews bounds the cached pages. Others are built for each request.
const maxViews = 64

// ServeHTTP answers GET and HEAD with a page, or with JSON for ?format=json, which is a [Snapshot]. With ?refresh=5 a
// browser reloads the page every 5 seconds. The headings of the tables are links that sort them. All requests within a
// second get the same response, so that many requests cost little.
func (m *Monitor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "GET and HEAD only", http.StatusMethodNotAllowed)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	query := r.URL.Query()
	asJSON := false
	switch format := query.Get("format"); format {
	case "json":
		asJSON = true
	case "", "html":
	default:
		http.Error(w, "format is html or json", http.StatusBadRequest)
		return
	}
	v := view{sort: query.Get("sort")}
	if _, ok := orders[v.sort]; !ok && v.sort != "" {
		http.Error(w, "there is no such order", http.StatusBadRequest)
		return
	}
	if s := query.Get("refresh"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 3600 {
			http.Error(w, "refresh is a number of seconds, 1 to 3600", http.StatusBadRequest)
			return
		}
		v.refresh = n
		h.Set("Refresh", strconv.Itoa(n))
	}
	body, err := m.body(asJSON, v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if asJSON {
		h.Set("Content-Type", "application/json")
	} else {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; style-src '"+styleHash+"'")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a client that does not read it has left
}

// body returns the response body. It is not modified later.
func (m *Monitor) body(asJSON bool, v view) ([]byte, error) {
	p := &m.page
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.snapshot == nil || now.Sub(p.made) >= fresh {
		p.snapshot, p.html, p.json = m.Snapshot(), make(map[view][]byte), nil
		p.made = now
	}
	if asJSON {
		var err error
		if p.json == nil {
			p.json, err = json.Marshal(p.snapshot)
		}
		return p.json, err
	}
	html, ok := p.html[v]
	if !ok {
		var b bytes.Buffer
		if err := pageTemplate.Execute(&b, shown{p.snapshot.sorted(v.sort), v}); err != nil {
			return nil, err
		}
		if html = b.Bytes(); len(p.html) < maxViews {
			p.html[v] = html
		}
	}
	return html, nil
}

// A shown is the data of the template.
type shown struct {
	*Snapshot
	view view
}

// Link returns the query of the page in another order or, for "", with another refresh interval.
func (s shown) Link(sort string, refresh int) string {
	query := make(url.Values)
	if v := cmp.Or(sort, s.view.sort); v != "" {
		query.Set("sort", v)
	}
	if refresh > 0 {
		query.Set("refresh", strconv.Itoa(refresh))
	}
	return "?" + query.Encode()
}

// Refresh returns the seconds until the page is reloaded, 0 for never.
func (s shown) Refresh() int { return s.view.refresh }

// Head returns a heading of a table: a link that sorts it.
func (s shown) Head(text, sort string) template.HTML {
	mark := ""
	if sort == s.view.sort {
		mark = " ▾"
	}
	return template.HTML(fmt.Sprintf(`<a href="%s">%s</a>%s`, template.HTMLEscapeString(s.Link(sort, s.view.refresh)), text, mark))
}

// descending orders by a figure, largest first.
func descending[T any, N cmp.Ordered](figure func(*T) N) func(a, b T) int {
	return func(a, b T) int { return cmp.Compare(figure(&b), figure(&a)) }
}

// An order sorts one of the tables.
type order struct {
	procedures func(a, b Procedure) int
	conns      func(a, b Conn) int
}

// orders are the orders of the headings. Immutable.
var orders = map[string]order{
	"name": {procedures: func(a, b Procedure) int {
		return cmp.Or(cmp.Compare(a.Program, b.Program), cmp.Compare(a.Procedure, b.Procedure))
	}},
	"calls":     {procedures: descending(func(p *Procedure) uint64 { return p.Calls })},
	"rate":      {procedures: descending(func(p *Procedure) float64 { return p.Rate })},
	"failed":    {procedures: descending(func(p *Procedure) uint64 { return p.Failed })},
	"mean":      {procedures: descending(func(p *Procedure) Seconds { return p.Mean })},
	"p99":       {procedures: descending(func(p *Procedure) Seconds { return p.P99 })},
	"longest":   {procedures: descending(func(p *Procedure) Seconds { return p.Max })},
	"number":    {conns: func(a, b Conn) int { return cmp.Compare(a.ID, b.ID) }},
	"peer":      {conns: func(a, b Conn) int { return cmp.Compare(a.Peer, b.Peer) }},
	"age":       {conns: descending(func(c *Conn) Seconds { return c.Age })},
	"conncalls": {conns: descending(func(c *Conn) uint64 { return c.Counters["calls"] })},
	"read":      {conns: descending(func(c *Conn) uint64 { return c.Counters["read_bytes"] })},
	"written":   {conns: descending(func(c *Conn) uint64 { return c.Counters["write_bytes"] })},
	"exposed":   {conns: descending(func(c *Conn) int64 { return c.ExposedBytes })},
	"held":      {conns: descending(func(c *Conn) int64 { return c.HeldBytes })},
}

// sorted returns a copy of a Snapshot with its tables in the given order.
func (s *Snapshot) sorted(by string) *Snapshot {
	o, other := orders[by], *s
	if o.procedures != nil {
		other.Procedures = slices.SortedStableFunc(slices.Values(s.Procedures), o.procedures)
	}
	if o.conns != nil {
		other.Conns = slices.SortedStableFunc(slices.Values(s.Conns), o.conns)
	}
	return &other
}

// style is the page's style sheet: the header of the response has its hash, and browsers accept no other.
const style = `
body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;color:#1b1f24;background:#fff}
h1{font-size:1.4em;margin:0 0 .2em}h2{font-size:1.1em;margin:1.6em 0 .3em}
p{margin:.2em 0;color:#57606a}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.15em .8em .15em 0;vertical-align:top;white-space:nowrap}
summary{cursor:pointer}
th{font-weight:600;border-bottom:1px solid #8c959f}
tr+tr td{border-top:1px solid #eaeef2}
td.n,th.n{text-align:right}
td.long{white-space:normal;max-width:40em}
.bad{color:#b3261e}
svg{display:block}svg rect{fill:#2f6fab}
dl{display:grid;grid-template-columns:max-content max-content;column-gap:1.2em;margin:.3em 0;align-content:start}
dt{color:#57606a}dd{margin:0}
.sides{display:flex;flex-wrap:wrap;gap:0 4em}
`

// styleHash is the hash of the style in the content security policy of the page. Immutable.
var styleHash = func() string {
	sum := sha256.Sum256([]byte(style))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}()

// pageTemplate is the page of a *Snapshot. Immutable.
var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"bars": bars, "size": size, "sorted": sorted, "when": when, "side": sideName, "sub": func(a, b int) int { return a - b },
	"minute": minuteBars, "counters": counterNames, "adapter": adapterNames,
}).Parse(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Title}}</title><style>` + style + `</style></head>
<body>
<h1>{{.Title}}</h1>
<p>{{when .Time}}, counting since {{when .Since}}. <a href="?format=json">JSON</a> · {{if .Refresh}}<a href="{{.Link "" 0}}">stop refreshing</a>{{else}}<a href="{{.Link "" 2}}">refresh every 2 seconds</a>{{end}}</p>
{{with .Minute}}
<div class="sides" id="minute">
<div><p>calls executed: {{printf "%.1f" (.Rate .Executed)}} a second</p>{{template "minute" .Executed}}</div>
<div><p>calls made: {{printf "%.1f" (.Rate .Made)}} a second</p>{{template "minute" .Made}}</div>
<div><p>calls failed: {{printf "%.1f" (.Rate .Failed)}} a second</p>{{template "minute" .Failed}}</div>
<div><p>messages: {{size (.Rate .Bytes)}} a second</p>{{template "minute" .Bytes}}</div>
</div>
{{end}}
{{with .Totals}}
<div class="sides">
<dl id="now"><dt>connections open</dt><dd>{{.Open}}</dd>
<dt>calls being executed</dt><dd>{{.Executing}}</dd>
<dt>calls waiting for a reply</dt><dd>{{.Calling}}</dd>
<dt>memory exposed to peers</dt><dd>{{size .ExposedBytes}}</dd>
<dt>memory held by calls</dt><dd>{{size .HeldBytes}}</dd></dl>
<dl id="ever"><dt>connections opened</dt><dd>{{.Opened}}</dd>
{{range sorted .EndedBy}}<dt>ended: {{.Name}}</dt><dd>{{.Value}}</dd>{{end}}
<dt>connections rejected</dt><dd>{{.Rejected}}</dd>
<dt>messages refused</dt><dd>{{.Refused}}</dd>
<dt>calls failed</dt><dd>{{.FailedCalls}}</dd>
<dt>waits for a credit</dt><dd>{{.CreditStalls}}</dd>
<dt>waits for memory</dt><dd>{{.MemoryStalls}}</dd>
<dt>memory registered</dt><dd>{{.Registrations}} times, {{size .RegisteredBytes}}</dd></dl>
</div>
<details><summary>all counters</summary><div class="sides">
<dl id="counters">{{range counters .Counters}}<dt>{{.Name}}</dt><dd>{{.Value}}</dd>{{end}}</dl>
<dl id="adapter">{{range adapter $}}<dt>{{.Name}}</dt><dd>{{.Value}}</dd>{{end}}</dl>
</div></details>
{{end}}
<h2>Latency</h2>
{{if .Procedures}}<table id="latency"><tr><th>{{.Head "procedure" "name"}}</th><th>as</th><th class="n">{{.Head "calls" "calls"}}</th><th class="n">{{.Head "a second" "rate"}}</th><th class="n">{{.Head "failed" "failed"}}</th><th class="n">{{.Head "mean" "mean"}}</th><th class="n">median ≤</th><th class="n">{{.Head "99% ≤" "p99"}}</th><th class="n">{{.Head "longest" "longest"}}</th><th class="n">waited</th><th class="n">handler, wire</th><th>below 1 µs, 2 µs, 4 µs … to 33 s, and longer</th></tr>
{{range .Procedures}}<tr><td>{{.Program}} {{if .Vers}}{{.Vers}} {{end}}{{.Procedure}}</td><td>{{side .Executed}}</td><td class="n">{{.Calls}}</td><td class="n">{{printf "%.1f" .Rate}}</td><td class="n{{if .Failed}} bad{{end}}">{{.Failed}}</td><td class="n">{{.Mean}}</td><td class="n">{{.Median}}</td><td class="n">{{.P99}}</td><td class="n">{{.Max}}</td><td class="n">{{.Waited}}</td><td class="n">{{if .Inner}}{{.Inner}}{{end}}</td>
<td><svg width="243" height="24" role="img">{{range bars .Classes}}<rect x="{{.X}}" y="{{.Y}}" width="8" height="{{.H}}"><title>{{.Title}}</title></rect>{{end}}</svg></td></tr>
{{end}}</table>{{else}}<p>No call has ended.</p>{{end}}

<h2>Calls under way</h2>
{{if .Calls}}<table id="calls"><tr><th class="n">age</th><th>procedure</th><th>as</th><th>peer</th><th class="n">xid</th><th class="n">bytes</th><th>by</th></tr>
{{range .Calls}}<tr><td class="n">{{.Total}}</td><td>{{.What}}</td><td>{{side .Executed}}{{if .Backward}}, backward{{end}}</td><td>{{template "peer" .}}</td><td class="n">{{printf "%#08x" .XID}}</td><td class="n">{{.Request.Bytes}}</td><td>{{.Request.By}}</td></tr>
{{end}}</table>{{else}}<p>None.</p>{{end}}

<h2>Connections</h2>
{{if .Conns}}<table id="connections"><tr><th class="n">{{.Head "number" "number"}}</th><th>{{.Head "peer" "peer"}}</th><th>opened by</th><th>provider</th><th class="n">{{.Head "age" "age"}}</th><th class="n">credits</th><th class="n">calls here</th><th class="n">to peer</th><th class="n">{{.Head "calls" "conncalls"}}</th><th class="n">{{.Head "read" "read"}}</th><th class="n">{{.Head "written" "written"}}</th><th class="n">{{.Head "exposed" "exposed"}}</th><th class="n">{{.Head "held" "held"}}</th><th>agreed on</th><th>adapter</th></tr>
{{range .Conns}}<tr id="c{{.ID}}"><td class="n">{{.ID}}</td><td>{{.Peer}}</td><td>{{if .Server}}peer{{else}}us{{end}}</td><td>{{.Provider}}</td><td class="n">{{.Age}}</td><td class="n">{{.Credits}}</td><td class="n">{{.Executing}}</td><td class="n">{{.Calling}}{{if .Waiting}} +{{.Waiting}} waiting{{end}}</td><td class="n">{{index .Counters "calls"}}</td><td class="n">{{size (index .Counters "read_bytes")}}</td><td class="n">{{size (index .Counters "write_bytes")}}</td><td class="n">{{size .ExposedBytes}}</td><td class="n">{{size .HeldBytes}}</td>
<td class="long">{{if .Version}}version {{.Version}}, inline {{.InlineSend}} out {{.InlineRecv}} in{{if .PrivateData}}, private data{{end}}{{if .Properties}}, properties{{end}}{{if .Configured}}, configured{{end}}{{if .RemoteInvalidation}}, remote invalidation{{end}}{{if .MemoryWindows}}, memory windows{{end}}{{if .BackwardCredits}}, {{.BackwardCredits}} backward credits{{end}}{{end}}</td>
<td class="long">{{if .Adapter}}<details><summary>figures</summary>{{range .Adapter}}{{if .Value}}{{.Name}}&nbsp;{{.Value}} {{end}}{{end}}</details>{{end}}</td></tr>
{{end}}</table>{{with sub .Totals.Open (len .Conns)}}{{if gt . 0}}<p>{{.}} more connections are not shown.</p>{{end}}{{end}}{{else}}<p>None.</p>{{end}}

<h2>Slowest calls of the last minutes</h2>
{{with .Slowest}}<table id="slowest">{{template "calls" .}}</table>{{else}}<p>None.</p>{{end}}
<h2>Latest calls that failed</h2>
{{with .Failed}}<table id="failed">{{template "calls" .}}</table>{{else}}<p>None.</p>{{end}}
<h2>Latest messages refused</h2>
{{with .Refused}}<table id="refused">{{template "refusals" .}}</table>{{else}}<p>None.</p>{{end}}
<h2>Latest connections rejected</h2>
{{with .Rejected}}<table id="rejected">{{template "refusals" .}}</table>{{else}}<p>None.</p>{{end}}
<h2>Latest connections that ended</h2>
{{if .Ended}}<table id="ended"><tr><th>time</th><th class="n">number</th><th>peer</th><th>opened by</th><th class="n">age</th><th class="n">calls</th><th>end</th><th>reason</th></tr>
{{range .Ended}}<tr id="c{{.ID}}"><td>{{when .Time}}</td><td class="n">{{.ID}}</td><td>{{.Peer}}</td><td>{{if .Server}}peer{{else}}us{{end}}</td><td class="n">{{.Age}}</td><td class="n">{{.Calls}}</td><td>{{.Outcome}}</td><td class="long">{{.Error}}</td></tr>
{{end}}</table>{{else}}<p>None.</p>{{end}}
</body>
</html>
{{define "peer"}}{{if .Conn}}<a href="#c{{.Conn}}" title="connection {{.Conn}}">{{.Peer}}</a>{{else}}{{.Peer}}{{end}}{{end}}
{{define "minute"}}<svg width="240" height="32" role="img">{{range minute .}}<rect x="{{.X}}" y="{{.Y}}" width="3" height="{{.H}}"><title>{{.Title}}</title></rect>{{end}}</svg>{{end}}
{{define "calls"}}<tr><th>began</th><th>procedure</th><th>as</th><th>peer</th><th class="n">xid</th><th class="n">took</th><th class="n">waited</th><th class="n">handler</th><th class="n">wire</th><th>request</th><th>reply</th><th>outcome</th></tr>
{{range .}}<tr><td>{{when .Time}}</td><td>{{.What}}</td><td>{{side .Executed}}{{if .Backward}}, backward{{end}}</td><td>{{template "peer" .}}</td><td class="n">{{printf "%#08x" .XID}}</td><td class="n">{{.Total}}</td><td class="n">{{.Waited}}</td><td class="n">{{if .Executed}}{{.Handler}}{{end}}</td><td class="n">{{if not .Executed}}{{.Wire}}{{end}}</td><td>{{.Request.Bytes}} {{.Request.By}}</td><td>{{.Reply.Bytes}} {{.Reply.By}}</td><td class="long">{{.Outcome}}{{if .Replayed}}, replayed{{end}}{{with .Resent}}, sent again {{.}} times{{end}}{{with .Error}}: {{.}}{{end}}</td></tr>
{{end}}{{end}}
{{define "refusals"}}<tr><th>time</th><th>peer</th><th class="n">xid</th><th>reason</th></tr>
{{range .}}<tr><td>{{when .Time}}</td><td>{{.Peer}}</td><td class="n">{{if .XID}}{{printf "%#08x" .XID}}{{end}}</td><td class="long">{{.Error}}</td></tr>
{{end}}{{end}}`))

func sideName(executed bool) string {
	if executed {
		return "server"
	}
	return "client"
}

func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 MST") }

// A named is a figure with a name.
type named struct {
	Name  string
	Value any
}

// sorted returns the nonzero figures of a map, by name.
func sorted(figures any) []named {
	var list []named
	switch m := figures.(type) {
	case map[string]uint64:
		for name, n := range m {
			if n != 0 {
				list = append(list, named{name, n})
			}
		}
	case map[string]int:
		for _, name := range slices.Collect(maps.Keys(m)) {
			list = append(list, named{name, m[name]})
		}
	}
	slices.SortFunc(list, func(a, b named) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// counterNames returns the nonzero counters of rpc.Stats, by what they count.
func counterNames(values map[string]uint64) (list []named) {
	for c := range new(rpc.Stats).Counters() {
		if n := values[c.Name]; n != 0 {
			list = append(list, named{label(c.Help), n})
		}
	}
	return list
}

// adapterNames returns the nonzero counters of adapters, by what they count.
func adapterNames(s shown) (list []named) {
	for _, n := range sorted(s.Totals.Adapter) {
		if help := s.help[n.Name]; help != "" {
			n.Name = label(help)
		}
		list = append(list, n)
	}
	return list
}

// label turns a sentence into a label.
func label(help string) string {
	help = strings.TrimSuffix(help, ".")
	if len(help) > 1 && help[1] >= 'a' { // not an abbreviation
		help = strings.ToLower(help[:1]) + help[1:]
	}
	return help
}

// Rate returns the rate of one of the lists, per second.
func (m Minute) Rate(list []uint64) float64 { return rate(list, m.age) }

// minuteBars returns the bars for the counts of a minute.
func minuteBars(counts []uint64) (list []bar) {
	const height = 32
	most := max(slices.Max(counts), 1)
	for i, n := range counts {
		if n > 0 {
			h := max(2, int(float64(n)/float64(most)*height))
			list = append(list, bar{4 * i, height - h, h, fmt.Sprintf("%d s ago: %d", len(counts)-i, n)})
		}
	}
	return list
}

// size formats a number of bytes.
func size(n any) string {
	var f float64
	switch n := n.(type) {
	case int64:
		f = float64(n)
	case uint64:
		f = float64(n)
	case float64:
		f = n
	}
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	if i == 0 || f >= 100 {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}

// A bar is a bar of a histogram, in pixels from the upper left.
type bar struct {
	X, Y, H int
	Title   string
}

// bars returns the bars for the classes of a histogram. Heights are logarithmic: one call among a million is visible.
func bars(classes []uint64) []bar {
	const height = 24
	most := 1.0
	for _, n := range classes {
		most = max(most, math.Log2(float64(n)+1))
	}
	var list []bar
	for i, n := range classes {
		if n == 0 {
			continue
		}
		h := max(2, int(math.Log2(float64(n)+1)/most*height))
		class := "below " + bucketEnd(i).String()
		if i == len(classes)-1 {
			class = "longer"
		}
		list = append(list, bar{9 * i, height - h, h, fmt.Sprintf("%s: %d", class, n)})
	}
	return list
}
