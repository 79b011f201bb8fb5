package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// crew is a limiter and alerters on one database.
type crew struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	client   *limits.Client
	alerters []*worker
	hook     *receiver
}

// newCrew starts a crew with an alerts file.
func newCrew(t *testing.T, hook *receiver, alerters int, file string) *crew {
	env := append([]string{"DATABASE_URL=" + testenv.Postgres(t), "NATS_URL=" + testenv.NATS(t).ClientURL(), "CLEANUP_EVERY=1s"}, alerterEnv(file)...)
	w := start(t, env...)
	c := &crew{nc: connect(t, w.nats), hook: hook}
	for range alerters {
		c.alerters = append(c.alerters, startAlerter(t, env...))
	}
	c.client = limits.NewClient(c.nc, limits.Timeout(patience))
	c.js = testenv.JetStream(t, c.nc)
	return c
}

// publish publishes denials of users, each by so many policies.
func (c *crew) publish(t *testing.T, users []string, policies int) <-chan error {
	published := make(chan error, 1)
	go func() {
		for _, user := range users {
			if err := publishEvents(t.Context(), c.js, user, policies); err != nil {
				published <- err
				return
			}
		}
		published <- nil
	}()
	return published
}

// deny exhausts a limit of a user, so that the limiter denies the user.
func deny(t *testing.T, nc *nats.Conn, user, name string) {
	t.Helper()
	body := fmt.Sprintf(`{"key":"api:user:%s","limit":1,"window":"1h","name":%q}`, user, name)
	decide(t, nc, limits.SubjectConsume, body)
	if r := decide(t, nc, limits.SubjectConsume, body); r.Allowed {
		t.Fatalf("%s: %+v, want a denial", body, r)
	}
}

func names(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%d", prefix, i))
	}
	return all
}

// TestThreeAlertersShareTheWork: each event and each job is handled by one of three processes, even while one of them is
// stopped. Every alert is sent once or is in a digest, and every scheduled run of a job happens once.
func TestThreeAlertersShareTheWork(t *testing.T) {
	t.Parallel()
	hook := newReceiver(t)
	c := newCrew(t, hook, 3, yamlFile(t, alertsText(hook, "hook", "")))
	const policies = throttled + 5
	published, denied := names("published", 20), names("denied", 20)
	done := c.publish(t, published, policies)
	for i, user := range denied {
		deny(t, c.nc, user, "1h")
		if i == len(denied)/2 {
			c.waitReceived(t, policies) // stop it in the middle
			c.alerters[0].terminate(t)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	c.waitReceived(t, throttled*len(published)+len(denied))
	digested(t, c.client, hook, published, policies-throttled)

	told := map[string]map[string]int{}
	for _, user := range slices.Concat(published, denied) {
		told[user] = hook.raised(user)
		for policy, n := range told[user] {
			if n != 1 {
				t.Errorf("%d alerts of %s and policy %q under different ids", n, user, policy)
			}
		}
	}
	for user, alerts := range told {
		if want := map[bool]int{true: throttled, false: 1}[slices.Contains(published, user)]; len(alerts) != want {
			t.Errorf("%s got %d alerts, want %d", user, len(alerts), want)
		}
	}
	if n := hook.repeated(); n > 0 {
		t.Errorf("%d messages came more than once, though nobody was killed", n)
	}
	c.ranOnce(t)
}

// waitReceived waits for so many alerts at the receiver.
func (c *crew) waitReceived(t *testing.T, want int) {
	t.Helper()
	eventually(t, func() error {
		if got := len(c.hook.each(limits.EventAlertRaised)); got < want {
			return fmt.Errorf("%d alerts came, want %d", got, want)
		}
		return nil
	})
}

// ranOnce checks the job that runs every second: no scheduled time has two runs, and the metrics of each process agree with
// the history.
func (c *crew) ranOnce(t *testing.T) {
	t.Helper()
	history := func() []limits.JobRun {
		h, err := c.client.JobHistory(t.Context(), limits.JobHistoryRequest{Job: "expire", Max: limits.MaxJobRuns})
		if err != nil {
			t.Fatal(err)
		}
		return h.Runs
	}
	eventually(t, func() error {
		if n := len(history()); n < 3 {
			return fmt.Errorf("%d runs", n)
		}
		return nil
	})
	for _, a := range c.alerters[1:] {
		before := doneBy(history(), a)
		did := jobsDone(t, a)
		if after := doneBy(history(), a); did < before-1 || did > after+1 { // one may be counted but not stored yet, or the other way round
			t.Errorf("process %d did %d runs, the history has %d to %d of it", a.cmd.Process.Pid, did, before, after)
		}
	}
	seen := map[int64]bool{}
	for _, r := range history() {
		if seen[r.Scheduled] || r.Outcome != "done" && r.Outcome != "running" && r.Outcome != "canceled" {
			t.Errorf("run %+v", r)
		}
		seen[r.Scheduled] = true
	}
}

// doneBy counts the runs that a process has done.
func doneBy(runs []limits.JobRun, a *worker) (n int) {
	for _, r := range runs {
		if r.Outcome == "done" && strings.Contains(r.Replica, fmt.Sprintf("/%d/", a.cmd.Process.Pid)) {
			n++
		}
	}
	return n
}

// titledText returns an alerts file whose title and target identify it.
func titledText(r *receiver, title string) string {
	return alertsText(r, title, fmt.Sprintf("    title: %q\n", title))
}

// TestAlertsFileIsReloadedUnderLoad changes the file while events come. Each alert is sent once, by one file or the other, and
// an invalid file changes nothing.
func TestAlertsFileIsReloadedUnderLoad(t *testing.T) {
	t.Parallel()
	hook := newReceiver(t)
	path := yamlFile(t, titledText(hook, "first"))
	c := newCrew(t, hook, 2, path)
	const policies = 10
	expected := 0
	publish := func() {
		t.Helper()
		if err := <-c.publish(t, []string{fmt.Sprintf("user-%d", expected/policies)}, policies); err != nil {
			t.Fatal(err)
		}
		expected += policies
	}
	titled := func(title string) (n int) {
		for _, m := range hook.each(limits.EventAlertRaised) {
			if m.Data.Title == title {
				n++
			}
		}
		return n
	}
	publish()
	c.waitReceived(t, 1)
	for _, next := range []string{"second", "third"} {
		replace(t, path, strings.Replace(titledText(hook, "wrong"), "threshold", "treshold", 1))
		publish()
		replace(t, path, titledText(hook, next))
		eventually(t, func() error { // until both processes have loaded it
			if publish(); titled(next) < 3*policies {
				return fmt.Errorf("%d alerts have the title %q", titled(next), next)
			}
			return nil
		})
	}
	c.waitReceived(t, expected)
	if sum := titled("first") + titled("second") + titled("third"); sum != expected || hook.repeated() > 0 {
		t.Errorf("%d alerts of %d came under known titles, %d came again", sum, expected, hook.repeated())
	}
}
