// Package browser opens pages in headless Chromium, for their tests.
package browser

import (
	"context"
	"fmt"
	"iter"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/seed503877ad/limits/internal/testenv"
)

// patience bounds every wait. It is long, because a slow machine must not fail the tests.
const patience = 60 * time.Second

// Action is something to do in a page, such as those that chromedp has.
type Action = chromedp.Action[chromedp.Void]

// Tab is a tab of a browser.
type Tab struct {
	testing.TB
	ctx context.Context

	mu         sync.Mutex
	complaints []string // scripts that failed, and violations of the page's content security policy
}

// Open opens a page in a browser of its own, until the test ends.
func Open(tb testing.TB, url string) *Tab {
	tb.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(testenv.Chromium(tb)),
		chromedp.WSURLReadTimeout(patience))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to run as root with one
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	tb.Cleanup(cancel)
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	tb.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(ctx)
	tb.Cleanup(closeTab)
	tb.Cleanup(func() { _ = chromedp.Cancel(ctx) }) // lets it clean up; the other contexts end it in any case
	t := &Tab{TB: tb, ctx: ctx}
	go t.listen(chromedp.Console(ctx))
	t.Do("open the page", chromedp.Navigate(url))
	return t
}

// listen collects complaints. A response with 429 is none.
func (t *Tab) listen(console iter.Seq2[chromedp.ConsoleMessage, error]) {
	for m, err := range console {
		if err != nil {
			return // the tab is closed
		}
		if (m.Type == chromedp.ConsoleException || m.Type == chromedp.ConsoleError) && !strings.Contains(m.Text, "status of 429") {
			t.mu.Lock()
			t.complaints = append(t.complaints, m.Text)
			t.mu.Unlock()
		}
	}
}

// Complaints are the errors in the browser's console so far.
func (t *Tab) Complaints() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.complaints, "\n")
}

// WantNoComplaint fails the test if there are any.
func (t *Tab) WantNoComplaint() {
	t.Helper()
	if said := t.Complaints(); said != "" {
		t.Errorf("the browser complains: %s", said)
	}
}

// Do runs actions in the tab. If they fail, the message has what the page shows.
func (t *Tab) Do(what string, actions ...Action) {
	t.Helper()
	if err := chromedp.Do(t.ctx, actions...); err != nil {
		shown, _ := chromedp.Run(t.ctx, chromedp.Evaluate[string]("document.body.innerText"))
		t.Fatalf("%s: %v; the page shows:\n%s\n%s", what, err, shown, t.Complaints())
	}
}

// Get evaluates an expression in the page.
func Get[T any](t *Tab, expression string) T {
	t.Helper()
	value, err := chromedp.Run(t.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// Until waits for an expression to be true in the page. chromedp's own Poll evaluates a text as a function, which a content
// security policy forbids.
func Until(expression string) Action {
	return chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`new Promise((yes, no) => {
		const end = Date.now() + %d;
		const look = () => %s ? yes() : Date.now() > end ? no(new Error("waited in vain")) : setTimeout(look, 20);
		look();
	})`, patience.Milliseconds(), expression), chromedp.EvalAwaitPromise)
}

// Shows waits for a text in an element.
func Shows(selector, text string) Action {
	return Until(fmt.Sprintf("document.querySelector(%q)?.textContent.includes(%q)", selector, text))
}

// Click clicks an element.
func Click(selector string) Action { return chromedp.Click(chromedp.CSS(selector)) }
