package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/seed503877ad/limits/httplimit"
)

// call shows the client side: a request that is tried again after a 429, three times in all and never before the
// server's time, and what a user interface can show when that was not enough.
func call(url, user string) {
	req, err := http.NewRequest(http.MethodPost, url, nil)
	if err != nil {
		log.Fatal(err)
	}
	req.Header.Set("X-User-Id", user)
	client := &http.Client{Transport: &httplimit.Transport{
		OnRetry: func(_ *http.Response, at time.Time) {
			fmt.Printf("busy, trying again in %s\n", time.Until(at).Round(time.Second))
		},
	}}
	resp, err := client.Do(req)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Print(resp.Status, " ")
	_, _ = io.Copy(os.Stdout, resp.Body)
	if at, ok := httplimit.RetryAt(resp); ok && httplimit.CanRetry(resp) {
		for left := range httplimit.Countdown(context.Background(), at) {
			fmt.Printf("\rthe button is enabled in %-8s", left)
		}
		fmt.Println()
	}
}
