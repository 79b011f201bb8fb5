package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/seed503877ad/limits/httplimit"
)

// call shows the client side: a request that is retried after a 429, with three attempts in all and never before the time
// that the server gave, and what a user interface can show if that was not enough. It returns at the end of the countdown, or
// when ctx ends.
func call(ctx context.Context, out io.Writer, url, user string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-User-Id", user)
	client := &http.Client{Transport: &httplimit.Transport{
		OnRetry: func(_ *http.Response, at time.Time) {
			fmt.Fprintf(out, "busy, trying again in %s\n", time.Until(at).Round(time.Second))
		},
	}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Fprint(out, resp.Status, " ")
	if _, err := io.Copy(out, resp.Body); err != nil {
		return err
	}
	if at, ok := httplimit.RetryAt(resp); ok && httplimit.CanRetry(resp) {
		for left := range httplimit.Countdown(ctx, at) {
			fmt.Fprintf(out, "\rthe button is enabled in %-8s", left)
		}
		fmt.Fprintln(out)
	}
	return nil
}
