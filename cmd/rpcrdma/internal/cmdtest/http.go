package cmdtest

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
)

// Flood makes workers call do repeatedly until stop is called.
func Flood(t *testing.T, workers int, do func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				do(ctx)
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// Fetch makes a request, with the Host header if not empty, and returns the status and body of the response.
func Fetch(t *testing.T, method, url, host string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}
