package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

// running reports whether a job was not started because it already runs.
func running(err error) bool {
	var busy *limits.Error
	return errors.As(err, &busy) && busy.Code == limits.CodeJobRunning
}

// alone is a limiter that runs everything in one process, and a receiver. Its rule sends an alert about each denial, at most
// one per user and hour.
type alone struct {
	w      *worker
	nc     *nats.Conn
	client *limits.Client
	hook   *receiver
}

func newAlone(t *testing.T) *alone {
	a := &alone{hook: newReceiver(t)}
	text := "throttle: {limit: 1, window: 1h}\n" + alertsText(a.hook, "hook", "    dedup: 1s\n    resolveAfter: 30s\n")
	a.w = start(t, alerterEnv(yamlFile(t, text))...)
	a.nc = connect(t, a.w.nats)
	a.client = limits.NewClient(a.nc, limits.Timeout(patience))
	return a
}

// job runs a job by the command line.
func (a *alone) job(t *testing.T, name string) error {
	t.Helper()
	run := exec.CommandContext(t.Context(), program(t, "limiter"), "jobs", "run", name, "--nats-url", a.w.nats)
	if out, err := run.CombinedOutput(); err != nil {
		return fmt.Errorf("jobs run %s: %w\n%s", name, err, out)
	}
	return nil
}

// waitSent waits until so many alerts of a user have been received.
func (a *alone) waitSent(t *testing.T, user string, want int) {
	t.Helper()
	eventually(t, func() error {
		n := 0
		for _, times := range a.hook.raised(user) {
			n += times
		}
		if n != want {
			return fmt.Errorf("%s got %d alerts, want %d", user, n, want)
		}
		return nil
	})
}

// waitNotice waits until an alert of a user has a notice.
func (a *alone) waitNotice(t *testing.T, user, notice string) {
	t.Helper()
	eventually(t, func() error {
		list, err := a.client.ListAlerts(t.Context(), limits.ListAlertsRequest{User: user})
		if err != nil {
			return err
		}
		for _, alert := range list.Alerts {
			if alert.Notice == notice {
				return nil
			}
		}
		return fmt.Errorf("alerts of %s: %+v, want one that is %s", user, list.Alerts, notice)
	})
}

// TestAllInOneDeliversAlerts goes through the life of alerts with one limiter and nothing but an alerts file.
func TestAllInOneDeliversAlerts(t *testing.T) {
	t.Parallel()
	a := newAlone(t)
	for _, step := range []struct {
		name string
		try  func(t *testing.T)
	}{
		{"a denial raises an alert, which is resolved", a.resolves},
		{"what the throttle holds is in a digest", a.digests},
		{"a silence holds an alert back until it ends", a.silences},
		{"a target that is gone leaves dead letters, which are replayed", a.replays},
	} {
		if !t.Run(step.name, step.try) {
			t.FailNow()
		}
	}
}

func (a *alone) resolves(t *testing.T) {
	deny(t, a.nc, "ann", "1h")
	a.waitSent(t, "ann", 1)
	eventually(t, func() error { // the job resolves it only after ResolveAt
		list, err := a.client.ListAlerts(t.Context(), limits.ListAlertsRequest{User: "ann"})
		if err == nil && (len(list.Alerts) != 1 || time.Now().UnixMilli() < list.Alerts[0].ResolveAt) {
			err = fmt.Errorf("it is not to be resolved yet: %+v", list.Alerts)
		}
		return err
	})
	eventually(t, func() error {
		if err := a.job(t, "alerts-resolve"); err != nil {
			return err
		}
		for _, m := range a.hook.each(limits.EventAlertResolved) {
			if m.Data.User == "ann" {
				return nil
			}
		}
		return errors.New("no message says that it is resolved")
	})
}

func (a *alone) digests(t *testing.T) {
	deny(t, a.nc, "bob", "1h")
	a.waitSent(t, "bob", 1)
	body := `{"key":"chat:user:bob","limit":1,"window":"1h"}`
	decide(t, a.nc, limits.SubjectConsume, body)
	decide(t, a.nc, limits.SubjectConsume, body)
	a.waitNotice(t, "bob", "held")
	eventually(t, func() error {
		if err := a.job(t, "alerts-digest"); err != nil {
			return err
		}
		if digests, alerts := a.hook.digested("bob"); digests != 1 || alerts != 1 {
			return fmt.Errorf("%d digests tell of %d alerts", digests, alerts)
		}
		return nil
	})
	a.waitSent(t, "bob", 1)
}

func (a *alone) silences(t *testing.T) {
	s, err := a.client.SilenceAlerts(t.Context(), limits.SilenceRequest{User: "eve", For: 3_600_000, Reason: "import"})
	if err != nil {
		t.Fatal(err)
	}
	deny(t, a.nc, "eve", "1h")
	a.waitNotice(t, "eve", "silenced")
	a.waitSent(t, "eve", 0)
	if _, err := a.client.UnsilenceAlerts(t.Context(), s.Silence.ID); err != nil {
		t.Fatal(err)
	}
	deny(t, a.nc, "eve", "other") // another counter of the same key and window, whose event comes at once
	a.waitSent(t, "eve", 1)
}

func (a *alone) replays(t *testing.T) {
	a.hook.refuse.Store(http.StatusGone)
	deny(t, a.nc, "joe", "1h")
	eventually(t, func() error {
		dead, err := a.client.DeadLetters(t.Context(), limits.DeadRequest{Channel: "hook"})
		if err != nil {
			return err
		}
		for _, d := range dead.Deliveries {
			if d.User == "joe" {
				return nil
			}
		}
		return fmt.Errorf("dead letters: %+v", dead)
	})
	a.waitSent(t, "joe", 0)
	a.hook.refuse.Store(0)
	if r, err := a.client.ReplayAlerts(t.Context(), limits.ReplayRequest{Channel: "hook"}); err != nil || r.Replayed == 0 {
		t.Fatalf("replay: %+v, %v", r, err)
	}
	a.waitSent(t, "joe", 1)
	if n := a.hook.repeated(); n > 0 {
		t.Errorf("%d messages came more than once", n)
	}
}

// TestUnprintedAPIKeyIsReported: the reader of the output is gone, and SIGPIPE must not end the program before it has reported
// the key.
func TestUnprintedAPIKeyIsReported(t *testing.T) {
	t.Parallel()
	w := start(t)
	for _, more := range [][]string{nil, {"--json"}} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read.Close()
		create := exec.CommandContext(t.Context(), program(t, "limiter"), append([]string{"keys", "create", "--user", "7", "--nats-url", w.nats}, more...)...)
		var stderr strings.Builder
		create.Stdout, create.Stderr = write, &stderr
		err = create.Run()
		write.Close()
		if err == nil || !strings.Contains(stderr.String(), "was created but could not be printed") || !strings.Contains(stderr.String(), "limiter keys revoke ") {
			t.Errorf("%q: %v: %s", more, err, stderr.String())
		}
	}
}
