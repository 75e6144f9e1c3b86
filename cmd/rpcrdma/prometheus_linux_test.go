package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A Prometheus that scrapes a server has data for every query of the dashboard and of the alerts in deploy, and
// finds the alerts in order.
func TestPrometheus(t *testing.T) {
	command, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("there is no command prometheus to scrape a server")
	}
	s := startServer(t, "--dir", t.TempDir(), "--metrics-addr", "127.0.0.1:0")
	_, page, _ := strings.Cut(s.http, "http://")
	at := freePort(t)
	dir := t.TempDir()
	rules, err := filepath.Abs("../../deploy/prometheus/alerts.yml")
	testutil.Must(t, err)
	testutil.WriteFiles(t, dir, map[string]string{"prometheus.yml": fmt.Sprintf(
		"global: {scrape_interval: 200ms, evaluation_interval: 200ms}\nrule_files: [%q]\nscrape_configs: [{job_name: rpcrdma, static_configs: [{targets: [%q]}]}]\n",
		rules, strings.TrimSuffix(page, "/"))})
	p := exec.CommandContext(t.Context(), command, "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", dir, "--web.listen-address", at)
	testutil.Must(t, p.Start())
	t.Cleanup(func() {
		p.Process.Kill()
		p.Wait()
	})
	get := func(path string, v any) bool {
		res, err := http.Get("http://" + at + path)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return json.NewDecoder(res.Body).Decode(v) == nil && res.StatusCode == http.StatusOK
	}

	var found struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Query, Health, LastError string }
			}
		}
	}
	testutil.Eventually(t, "the alerts are evaluated", func() bool {
		mustRun(t, "ping", "-c", "3", s.addr)
		mustRun(t, "ls", s.url("/"))
		return get("/api/v1/rules", &found) && len(found.Data.Groups) > 0 && found.Data.Groups[0].Rules[0].Health == "ok"
	})
	queries := make(map[string]string)
	threshold := regexp.MustCompile(` > [0-9.]+$`)
	unless := regexp.MustCompile(` unless .*$`)
	for _, r := range found.Data.Groups[0].Rules {
		if r.Health != "ok" {
			t.Errorf("alert %s: %s", r.Name, r.LastError)
		}
		queries["alert "+r.Name] = unless.ReplaceAllString(threshold.ReplaceAllString(r.Query, ""), "")
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile("../../deploy/grafana/rpcrdma.json")
	testutil.Must(t, err)
	testutil.Must(t, json.Unmarshal(text, &board))
	variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
	for _, panel := range board.Panels {
		for i, target := range panel.Targets {
			queries[fmt.Sprintf("%s %d", panel.Title, i)] = variables.Replace(target.Expr)
		}
	}
	if len(queries) < 15 {
		t.Errorf("%d queries", len(queries))
	}
	for name, query := range queries {
		// What happens only when something is wrong has no series before: then the metric has to be there.
		some := regexp.MustCompile(`,?(outcome|reason)!="[a-z]+"`).ReplaceAllString(query, "")
		var result struct {
			Data struct{ Result []json.RawMessage }
		}
		testutil.Eventually(t, name+" has data: "+some, func() bool {
			mustRun(t, "ls", s.url("/"))
			return get("/api/v1/query?query="+url.QueryEscape(some), &result) && len(result.Data.Result) > 0
		})
	}
}

// freePort returns an address on which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}
