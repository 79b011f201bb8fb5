package main

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/examples/internal/exampletest"
	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/testenv"
)

// tab is a tab of a browser.
type tab struct {
	*testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string // scripts that failed, and violations of the page's content security policy
}

// browse opens the page in a browser of its own, until the test ends.
func browse(t *testing.T, s *server) *tab {
	t.Helper()
	site := httptest.NewServer(s.handler())
	t.Cleanup(site.Close)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(testenv.Chromium(t)),
		chromedp.WSURLReadTimeout(exampletest.Patience))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to run as root with one
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*exampletest.Patience)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(ctx)
	t.Cleanup(closeTab)
	t.Cleanup(func() { _ = chromedp.Cancel(ctx) }) // lets it clean up; the other contexts end it in any case
	b := &tab{T: t, ctx: ctx}
	go b.listen(chromedp.Console(ctx))
	b.do("open the page", chromedp.Navigate(site.URL))
	return b
}

// listen collects complaints. A response with 429 is none.
func (b *tab) listen(console iter.Seq2[chromedp.ConsoleMessage, error]) {
	for m, err := range console {
		if err != nil {
			return // the tab is closed
		}
		if (m.Type == chromedp.ConsoleException || m.Type == chromedp.ConsoleError) && !strings.Contains(m.Text, "status of 429") {
			b.mu.Lock()
			b.complaints = append(b.complaints, m.Text)
			b.mu.Unlock()
		}
	}
}

func (b *tab) said() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.complaints, "\n")
}

func (b *tab) wantNoComplaint() {
	b.Helper()
	if said := b.said(); said != "" {
		b.Errorf("the browser complains: %s", said)
	}
}

// do runs actions in the tab. If they fail, the message has what the page shows.
func (b *tab) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		shown, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
		b.Fatalf("%s: %v; the page shows:\n%s\n%s", what, err, shown, b.said())
	}
}

// get evaluates an expression in the page.
func get[T any](b *tab, expression string) T {
	b.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.Fatalf("%s: %v", expression, err)
	}
	return value
}

// until waits for an expression to be true in the page. chromedp's own Poll evaluates a text as a function, which the page's content
// security policy forbids.
func until(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`new Promise((yes, no) => {
		const end = Date.now() + %d;
		const look = () => %s ? yes() : Date.now() > end ? no(new Error("waited in vain")) : setTimeout(look, 20);
		look();
	})`, exampletest.Patience.Milliseconds(), expression), chromedp.EvalAwaitPromise)
}

// shows waits for a text in an element.
func shows(selector, text string) chromedp.Action[chromedp.Void] {
	return until(fmt.Sprintf("document.querySelector(%q)?.textContent.includes(%q)", selector, text))
}

func click(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Click(chromedp.CSS(selector))
}

// become types a name, and leaves the field as a user would.
func become(user string) chromedp.Action[chromedp.Void] {
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
		b.do("see a new user", shows("[data-type=minute]", "0 of 5 used, 5 left"), shows("[data-type=day]", "0 of 50 used"),
			shows("[data-type=money]", "0 of 100 used"), shows("#shown", "demo (FREE)"))
		for _, used := range []string{"1 of 5 used, 4 left", "2 of 5", "3 of 5", "4 of 5", "5 of 5 used, 0 left"} {
			b.do("generate to "+used, click("#generate"), shows("[data-type=minute]", used), shows("#message", "was created"))
		}
		b.do("see the bar full", until(`document.querySelector("[data-type=minute].closed progress").value === 5`),
			until(`document.querySelector("[data-type=minute] progress").max === 5`), shows("[data-type=minute]", "whole again in "))
		b.do("press once more", click("#generate"), shows("#message", "You've used 5/5 generations this minute. Try again in "),
			until(`document.querySelector("#generate").disabled`), shows("#generate", "Closed for "))
		b.do("see it count down", until(fmt.Sprintf("document.querySelector('#generate').textContent !== %q",
			get[string](b, "document.querySelector('#generate').textContent"))))
		b.do("spend money", click("#render"), shows("[data-type=money]", "30 of 100 used, 70 left"))
		b.do("become somebody who pays", chromedp.Evaluate[chromedp.Void](`document.querySelector("#tier").value = "PRO"`), become("payer"),
			shows("#shown", "payer (PRO)"), shows("[data-type=minute]", "0 of 20 used"), until(`!document.querySelector("#generate").disabled`))
		b.wantNoComplaint()
	})
}

// TestPageRefreshes charges without the page, and lets a minute of two seconds pass.
func TestPageRefreshes(t *testing.T) {
	t.Parallel()
	s := start(t, exampletest.SQLite, exampletest.Rewrite(t, "policies.yaml", "window: 1m", "window: 2s"))
	b := browse(t, s)
	b.do("see a new user", shows("[data-type=day]", "0 of 50 used"))
	for range 3 {
		if a := s.generate(t, "demo", "FREE"); a.Code != http.StatusCreated {
			t.Fatalf("generate: %d %s", a.Code, a.Body)
		}
	}
	b.do("see it without a click", shows("[data-type=day]", "3 of 50 used"), shows("[data-type=minute]", "0 of 5 used"))
	b.wantNoComplaint()
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
	b.do("read that there is no status", shows("#message", "the limits cannot be told"))
	if err := silent.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	exampletest.Start(t, exampletest.SQLite, "policies.yaml", func(o *app.Options) { o.NATSURL = url })
	b.do("see it come back", shows("[data-type=minute]", "0 of 5 used"), until(`document.querySelector("#message").textContent === ""`))
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
	closed := func(id string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf(`document.querySelector(%q).disabled`, id))
	}
	b.do("be refused", click("#generate"), closed("#generate"), click("#render"), closed("#render"))
	if _, err := s.client.Reset(t.Context(), limits.ResetRequest{Key: "generations:demo"}); err != nil {
		t.Fatal(err)
	}
	b.do("generate again", until(`!document.querySelector("#generate").disabled`), shows("#generate", "Generate"))
	if !get[bool](b, `document.querySelector("#render").disabled`) {
		t.Error("render is open, which needs 30 cents where 20 are left")
	}
}

// TestPageFitsAPhone even if the user has a long name.
func TestPageFitsAPhone(t *testing.T) {
	t.Parallel()
	file, _ := policyFile(t)
	b := browse(t, start(t, exampletest.SQLite, file))
	name := strings.Repeat("u", 64)
	b.do("take a long name", chromedp.EmulateViewport(360, 640), become(name), shows("#shown", name))
	if wide := get[int](b, "document.documentElement.scrollWidth"); wide > 360 {
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
		if got := get[string](b, fmt.Sprintf("span(%d)", ms)); got != want {
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
	b.do("take the name", become(name), shows("#shown", name+" (FREE)"))
	b.wantNoComplaint()
	if images := get[int](b, `document.querySelectorAll("img").length`); images != 0 {
		t.Errorf("the name became markup: %d images", images)
	}
	// Even a script that got into the page would not run.
	b.do("inject a script", chromedp.Evaluate[chromedp.Void](`{
		const s = document.createElement("script"); s.textContent = "document.title = 'run'"; document.body.append(s); }`))
	if title := get[string](b, "document.title"); title != "Generations" {
		t.Errorf("the title is %q: an injected script ran", title)
	}
	exampletest.Until(t, "a complaint of the injected script", func() bool { return strings.Contains(b.said(), "Content Security Policy") })
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
