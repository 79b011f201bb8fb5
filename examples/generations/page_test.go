package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/examples/internal/exampletest"
	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/testenv"
	"github.com/seed503877ad/limits/internal/testenv/browser"
)

// browse opens the page of a server.
func browse(t *testing.T, s *server) *browser.Tab {
	t.Helper()
	site := httptest.NewServer(s.handler())
	t.Cleanup(site.Close)
	return browser.Open(t, site.URL)
}

// become types a name, and leaves the field as a user would.
func become(user string) browser.Action {
	return chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`{
		const field = document.querySelector("#user");
		field.value = %q;
		field.dispatchEvent(new Event("change"));
	}`, user))
}

// TestPage presses the button until the limit is reached.
func TestPage(t *testing.T) {
	t.Parallel()
	file, _ := policyFile(t)
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		b := browse(t, start(t, store, file))
		b.Do("see a new user", browser.Shows("[data-type=minute]", "0 of 5 used, 5 left"),
			browser.Shows("[data-type=day]", "0 of 50 used"), browser.Shows("[data-type=money]", "0 of 100 used"), browser.Shows("#shown", "demo (FREE)"))
		for _, used := range []string{"1 of 5 used, 4 left", "2 of 5", "3 of 5", "4 of 5", "5 of 5 used, 0 left"} {
			b.Do("generate to "+used, browser.Click("#generate"), browser.Shows("[data-type=minute]", used),
				browser.Shows("#message", "was created"))
		}
		b.Do("see the bar full", browser.Until(`document.querySelector("[data-type=minute].closed progress").value === 5`),
			browser.Until(`document.querySelector("[data-type=minute] progress").max === 5`),
			browser.Shows("[data-type=minute]", "whole again in "))
		b.Do("press once more", browser.Click("#generate"),
			browser.Shows("#message", "You've used 5/5 generations this minute. Try again in "),
			browser.Until(`document.querySelector("#generate").disabled`), browser.Shows("#generate", "Closed for "))
		b.Do("see it count down", browser.Until(fmt.Sprintf("document.querySelector('#generate').textContent !== %q",
			browser.Get[string](b, "document.querySelector('#generate').textContent"))))
		b.Do("spend money", browser.Click("#render"), browser.Shows("[data-type=money]", "30 of 100 used, 70 left"))
		b.Do("become somebody who pays", chromedp.Evaluate[chromedp.Void](`document.querySelector("#tier").value = "PRO"`),
			become("payer"), browser.Shows("#shown", "payer (PRO)"), browser.Shows("[data-type=minute]", "0 of 20 used"),
			browser.Until(`!document.querySelector("#generate").disabled`))
		b.WantNoComplaint()
	})
}

// TestPageRefreshes charges without the page, and lets a minute of two seconds pass.
func TestPageRefreshes(t *testing.T) {
	t.Parallel()
	s := start(t, exampletest.SQLite, exampletest.Rewrite(t, "policies.yaml", "window: 1m", "window: 2s"))
	b := browse(t, s)
	b.Do("see a new user", browser.Shows("[data-type=day]", "0 of 50 used"))
	for range 3 {
		if a := s.generate(t, "demo", "FREE"); a.Code != http.StatusCreated {
			t.Fatalf("generate: %d %s", a.Code, a.Body)
		}
	}
	b.Do("see it without a click", browser.Shows("[data-type=day]", "3 of 50 used"), browser.Shows("[data-type=minute]", "0 of 5 used"))
	b.WantNoComplaint()
}

// TestPageTellsOfAnOutage as long as it lasts. The worst is a limiter that is there but silent, since each answer then takes as long
// as the page waits between two refreshes.
func TestPageTellsOfAnOutage(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	nc := testenv.Connect(t, url)
	silent, err := nc.Subscribe(limits.SubjectStatus, func(*nats.Msg) {})
	if err != nil {
		t.Fatal(err)
	}
	b := browse(t, &server{client: limits.NewClient(nc), policy: "generations"})
	b.Do("read that there is no status", browser.Shows("#message", "the limits cannot be told"))
	if err := silent.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	exampletest.Start(t, exampletest.SQLite, "policies.yaml", func(o *app.Options) { o.NATSURL = url })
	b.Do("see it come back", browser.Shows("[data-type=minute]", "0 of 5 used"),
		browser.Until(`document.querySelector("#message").textContent === ""`))
}

// TestPageOpensAButtonBeforeItsTime if an operator resets or raises what had refused it.
func TestPageOpensAButtonBeforeItsTime(t *testing.T) {
	t.Parallel()
	file, _ := policyFile(t)
	s := start(t, exampletest.SQLite, file)
	b := browse(t, s)
	for _, used := range []limits.Request{{Policy: "generations", Cost: 50}, {Policy: "money", Cost: 80}} {
		used.Attributes = map[string]string{"user": "demo"}
		if _, err := s.client.Record(t.Context(), used); err != nil {
			t.Fatal(err)
		}
	}
	closed := func(id string) browser.Action {
		return browser.Until(fmt.Sprintf(`document.querySelector(%q).disabled`, id))
	}
	b.Do("be refused", browser.Click("#generate"), closed("#generate"), browser.Click("#render"), closed("#render"))
	if _, err := s.client.Reset(t.Context(), limits.ResetRequest{Key: "generations:demo"}); err != nil {
		t.Fatal(err)
	}
	b.Do("generate again", browser.Until(`!document.querySelector("#generate").disabled`), browser.Shows("#generate", "Generate"))
	if !browser.Get[bool](b, `document.querySelector("#render").disabled`) {
		t.Error("render is open, which needs 30 cents where 20 are left")
	}
}

// TestPageFitsAPhone even if the user has a long name.
func TestPageFitsAPhone(t *testing.T) {
	t.Parallel()
	file, _ := policyFile(t)
	b := browse(t, start(t, exampletest.SQLite, file))
	name := strings.Repeat("u", 64)
	b.Do("take a long name", chromedp.EmulateViewport(360, 640), become(name), browser.Shows("#shown", name))
	if wide := browser.Get[int](b, "document.documentElement.scrollWidth"); wide > 360 {
		t.Errorf("the page is %d wide on a phone of 360", wide)
	}
}

// TestPageRoundsWaitsUp: a user who comes back when the page says is not denied again.
func TestPageRoundsWaitsUp(t *testing.T) {
	t.Parallel()
	file, _ := policyFile(t)
	b := browse(t, start(t, exampletest.SQLite, file))
	for ms, want := range map[int]string{
		-1: "0 s", 1: "1 s", 59_000: "59 s", 59_001: "1 min 0 s", 3_599_000: "59 min 59 s", 3_599_001: "1 h 0 min",
		3_600_001: "1 h 1 min", 32_340_000: "8 h 59 min", 32_399_000: "9 h 0 min", 86_400_000: "24 h 0 min",
	} {
		if got := browser.Get[string](b, fmt.Sprintf("span(%d)", ms)); got != want {
			t.Errorf("%d ms are %q, want %q", ms, got, want)
		}
	}
}

// TestPageShowsNamesAsText uses markup as the name of a user.
func TestPageShowsNamesAsText(t *testing.T) {
	t.Parallel()
	file, _ := policyFile(t)
	b := browse(t, start(t, exampletest.SQLite, file))
	const name = `<img src=x onerror="document.title='run'">`
	b.Do("take the name", become(name), browser.Shows("#shown", name+" (FREE)"))
	b.WantNoComplaint()
	if images := browser.Get[int](b, `document.querySelectorAll("img").length`); images != 0 {
		t.Errorf("the name became markup: %d images", images)
	}
	// Even a script that got into the page would not run.
	b.Do("inject a script", chromedp.Evaluate[chromedp.Void](`{
		const s = document.createElement("script"); s.textContent = "document.title = 'run'"; document.body.append(s); }`))
	if title := browser.Get[string](b, "document.title"); title != "Generations" {
		t.Errorf("the title is %q: an injected script ran", title)
	}
	exampletest.Until(t, "a complaint of the injected script", func() bool {
		return strings.Contains(b.Complaints(), "Content Security Policy")
	})
}

// TestPageLoadsNothingFromElsewhere reads the page's headers and its links.
func TestPageLoadsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	page(w, nil)
	csp := w.Header().Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "connect-src 'self'", "base-uri 'none'", "frame-ancestors 'none'"} {
		if !strings.Contains(csp, part) {
			t.Errorf("Content-Security-Policy %q lacks %s", csp, part)
		}
	}
	if body := w.Body.String(); strings.Contains(csp, "unsafe") || strings.Contains(body, "http") || strings.Contains(body, "//cdn") {
		t.Errorf("the page or its policy %q reaches elsewhere", csp)
	}
	again := httptest.NewRecorder()
	if page(again, nil); again.Header().Get("Content-Security-Policy") == csp {
		t.Error("two pages have one nonce")
	}
}
