package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/redact"
)

// watchCmd prints events as they happen, one line each.
type watchCmd struct {
	clientFlags
	Count *int     `placeholder:"N" help:"End after N events."`
	Type  []string `placeholder:"T" help:"Types of events: limits.warning, limits.exceeded, limits.report, alerts.raised, alerts.resolved, alerts.digest, alerts.test, or alerts.* for all about alerts; the first two unless set."`
}

func (*watchCmd) Help() string {
	return `Examples:

  limiter watch
  limiter watch --count 1                            # wait for the next event
  limiter watch --json | jq -r .subject              # each CloudEvent as it came
  limiter watch --type 'alerts.*'                    # alerts instead of crossings

Events that happened before are not shown; the JetStream streams LIMITS and ALERTS keep them. If no limiter is there, or for
alerts no alerter, the watch says so on standard error and goes on.`
}

func (c *watchCmd) Validate() error {
	if c.Count != nil && *c.Count < 1 {
		return fmt.Errorf("--count: %d is below 1; leave it out to watch until interrupted", *c.Count)
	}
	for _, t := range c.Type {
		if !slices.Contains(watchTypes, t) { // of a misspelled one no event would ever come
			return fmt.Errorf("--type: %q is not one of %s", t, strings.Join(watchTypes, ", "))
		}
	}
	return c.clientFlags.Validate()
}

var watchTypes = []string{limits.EventWarning, limits.EventExceeded, limits.EventReport, limits.EventAlertRaised, limits.EventAlertResolved,
	limits.EventAlertDigest, limits.EventAlertTest, "alerts.*"}

// Run ends after --count events, or with the context: a signal is the normal end of a watch.
func (c *watchCmd) Run(s *session) error {
	nc, err := c.connect(s, "watch", nats.DisconnectErrHandler(func(nc *nats.Conn, _ error) {
		if !nc.IsClosed() {
			fmt.Fprintln(s.err, "limiter: connection lost; events until it is back are not shown")
		}
	}), nats.ReconnectHandler(func(*nats.Conn) { fmt.Fprintln(s.err, "limiter: reconnected") }))
	if err != nil {
		return err
	}
	defer nc.Close()
	return c.follow(s, nc)
}

func (c *watchCmd) follow(s *session, nc *nats.Conn) error {
	client := limits.NewClient(nc, limits.Timeout(c.Timeout))
	events, err := client.Watch(s.ctx, c.Type...)
	if err != nil {
		return err
	}
	if len(c.Type) == 0 {
		c.Type = watchTypes[:2]
	}
	fmt.Fprintf(s.err, "watching %s\n", strings.Join(c.Type, " and "))
	ctx, end := context.WithCancel(s.ctx)
	looked := make(chan struct{})
	go func() { defer close(looked); c.noteMissing(ctx, s, client) }()
	defer func() { end(); <-looked }()
	n := 0
	for e, err := range events {
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrPermissionViolation) {
			return err
		}
		if err != nil { // an event that cannot be read
			fmt.Fprintf(s.err, "limiter: %s\n", oneLine(err.Error()))
			continue
		}
		c.print(s, e)
		if n++; c.Count != nil && n == *c.Count {
			return nil
		}
	}
	return nil
}

// noteMissing says who is missing for events to come, a limiter or an alerter. Nothing else would tell their absence from a
// quiet time. It says nothing if that is not known, as to a user who may see events and ask nothing.
func (c *watchCmd) noteMissing(ctx context.Context, s *session, client *limits.Client) {
	ask := map[string]func() error{
		"limiter": func() error { _, err := client.Status(ctx, "limits:watch"); return err }, // a key that nobody charges
		"alerter": func() error { _, err := client.ListChannels(ctx); return err },
	}
	asked := map[string]bool{}
	for _, t := range c.Type {
		who := "limiter"
		if strings.HasPrefix(t, "alerts.") {
			who = "alerter"
		}
		if asked[who] {
			continue
		}
		asked[who] = true
		missing, _ := errors.AsType[*limits.Error](ask[who]())
		if missing != nil && strings.Contains(missing.Message, "no "+who+" is listening") && ctx.Err() == nil {
			fmt.Fprintf(s.err, "limiter: no %s is listening on %s; the watch goes on, and shows events once one is there\n",
				who, redact.Servers(cmp.Or(c.NATSURL, nats.DefaultURL)))
		}
	}
}

func (c *watchCmd) print(s *session, e limits.Event) {
	if c.JSON {
		s.out.line(e.Raw)
		return
	}
	fmt.Fprintln(s.out, oneLine(eventLine(s.now(), e)))
}

// eventLine formats an event as one line, with times in now's zone.
func eventLine(now time.Time, e limits.Event) string {
	at := e.Time.In(now.Location()).Format("15:04:05.000")
	switch d := e.Data.(type) {
	case *limits.Warning:
		return fmt.Sprintf("%s  warning   %s  %s: %d left, reset %s",
			at, e.Subject, rate(d.Limit, d.Window, 0), d.Remaining, when(now, d.Reset))
	case *limits.Exceeded:
		retry := "can never fit"
		if d.RetryAfter > 0 {
			retry = "retry in " + waitTime(d.RetryAfter)
		}
		return fmt.Sprintf("%s  exceeded  %s  %s: %d denied, %s",
			at, e.Subject, rate(d.Limit, d.Window, 0), d.Denied, retry)
	case *limits.Report:
		return fmt.Sprintf("%s  report    %s: %d heaviest keys, %d most denied", at, d.Date, len(d.Used), len(d.Denied))
	case *limits.AlertRaised:
		return fmt.Sprintf("%s  raised    %s  %s: %s (%s)", at, dash(e.Subject), d.Rule, d.Title, d.Alert)
	case *limits.AlertResolved:
		return fmt.Sprintf("%s  resolved  %s  %s: %s, %d denied (%s)", at, dash(e.Subject), d.Rule, d.Title, d.Denied, d.Alert)
	case *limits.AlertDigest:
		return fmt.Sprintf("%s  digest    %s  %s held back, %d denied", at, dash(e.Subject), count(d.Alerts, "alert"), d.Denied)
	case *limits.AlertTest:
		return fmt.Sprintf("%s  test      %s  %s", at, d.Channel, d.Note)
	}
	return fmt.Sprintf("%s  %s  %s", at, e.Type, e.Subject)
}
