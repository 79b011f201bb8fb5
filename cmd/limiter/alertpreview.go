package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/schollz/progressbar/v3"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/app"
)

type alertsPreviewCmd struct {
	natsFlags
	File  string   `arg:"" optional:"" help:"The alerts file; the built-in rule unless given."`
	Since spanFlag `default:"2h" placeholder:"SPAN" help:"How far to look back, such as 2h or 7d (${default})."`
	Max   int      `default:"1000000" placeholder:"N" help:"At most N events, the oldest first (${default})."`
	List  bool     `help:"List every alert instead of counts by rule and user."`
	JSON  bool     `help:"Print JSON."`
}

func (*alertsPreviewCmd) Help() string {
	return `Reads the events that the JetStream stream LIMITS keeps, and applies the rules to them here: nothing is sent, and nothing
changes. Silences are ignored, and the throttle begins unused.

Examples:

  limiter alerts preview alerts.yaml --since 2h
  limiter alerts preview alerts.yaml --since 7d --list
  limiter alerts preview --json | jq '.alerts[] | select(.notice == "held")'`
}

func (c *alertsPreviewCmd) Validate() error {
	if c.Max < 1 || c.Max > 10_000_000 {
		return fmt.Errorf("--max: %d is not between 1 and 10000000", c.Max)
	}
	return c.natsFlags.Validate()
}

func (c *alertsPreviewCmd) Run(s *session) error {
	rules, err := await(s, c.File+" was not read to the end", func() (*app.AlertRules, error) { return app.PreviewRules(c.File) })
	if err != nil {
		return printMistakes(s, err)
	}
	ctx, refuse, refusals := untilRefused(s.ctx)
	defer refuse(nil)
	nc, err := c.connect(s, "alerts preview", refusals)
	if err != nil {
		return err
	}
	defer nc.Close()
	// Not s.now, which tests set: the real time is close to the server's clock.
	since := time.Now().Add(-time.Duration(c.Since))
	progress, end := readProgress(s)
	p, err := app.PreviewAlerts(ctx, rules, app.EventHistory{Conn: nc, Since: since, Max: c.Max, Progress: progress})
	end()
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, nats.ErrPermissionViolation) {
			err = cause
		}
		return fmt.Errorf("preview alerts: %w", err)
	}
	switch {
	case c.JSON:
		return printJSON(s, p)
	case c.List:
		listPreview(s, p.Alerts)
	default:
		countPreview(s, p.Alerts)
	}
	printTotals(s, p, since)
	return nil
}

// readProgress shows how many events were read: a bar on a terminal, which end removes, otherwise a line every 100,000 events.
func readProgress(s *session) (show func(read, total uint64), end func()) {
	if !s.errTTY {
		return func(read, total uint64) {
			if read%100_000 == 0 {
				fmt.Fprintf(s.err, "%d of %d events read\n", read, total)
			}
		}, func() {}
	}
	var bar *progressbar.ProgressBar
	show = func(read, total uint64) {
		if bar == nil {
			bar = newBar(s, int64(total), "reading events")
		}
		_ = bar.Set64(int64(read)) // go on without a bar
	}
	return show, func() {
		if bar != nil {
			_ = bar.Finish()
		}
	}
}

func listPreview(s *session, all []limits.Alert) {
	if len(all) == 0 {
		return
	}
	t := newTable(s.out, "RAISED", "RULE", "SEVERITY", "USER", "LIMIT", "DENIED", "TOLD", "TITLE")
	for i := range all {
		a := &all[i]
		t.row(moment(s, a.RaisedAt, "-"), a.Rule, a.Severity, dash(a.User), limitOf(a), a.Denied, notice(a), a.Title)
	}
	t.flush()
	fmt.Fprintln(s.out)
}

// previewRow counts the alerts of one rule for one user.
type previewRow struct {
	rule, user         string
	alerts, sent, held int
	denied             int64
}

// countPreview shows how many alerts would be raised for each rule and user, most first.
func countPreview(s *session, all []limits.Alert) {
	rows := previewRows(all)
	if len(rows) == 0 {
		return
	}
	t := newTable(s.out, "RULE", "USER", "ALERTS", "SENT", "HELD", "DENIED")
	for _, r := range rows {
		t.row(r.rule, dash(r.user), r.alerts, r.sent, r.held, r.denied)
	}
	t.flush()
	fmt.Fprintln(s.out)
}

func previewRows(all []limits.Alert) []*previewRow {
	type id struct{ rule, user string }
	found := map[id]*previewRow{}
	var rows []*previewRow
	for i := range all {
		a := &all[i]
		r := found[id{a.Rule, a.User}]
		if r == nil {
			r = &previewRow{rule: a.Rule, user: a.User}
			found[id{a.Rule, a.User}] = r
			rows = append(rows, r)
		}
		r.alerts++
		r.denied += a.Denied
		if a.Notice == "held" {
			r.held++
		} else {
			r.sent++
		}
	}
	slices.SortStableFunc(rows, func(a, b *previewRow) int {
		return cmp.Or(b.alerts-a.alerts, cmp.Compare(a.rule, b.rule), cmp.Compare(a.user, b.user))
	})
	return rows
}

// printTotals prints what became of all events since a time.
func printTotals(s *session, p *app.AlertPreview, since time.Time) {
	users := map[string]bool{}
	for i := range p.Alerts {
		if p.Alerts[i].Notice == "held" {
			users[p.Alerts[i].User] = true
		}
	}
	fmt.Fprintf(s.out, "%s since %s, %d matched by a rule: %s, %d sent, %d held for the digests of %s; %s held back while the limit was exceeded\n",
		count(p.Events, "event"), moment(s, since.UnixMilli(), "-"), p.Matched,
		count(len(p.Alerts), "alert"), p.Sent, p.Held, count(len(users), "user"), count(p.Withheld, "warning"))
	if p.Unreadable > 0 {
		fmt.Fprintf(s.err, "limiter: %s could not be read as events\n", count(p.Unreadable, "message"))
	}
	if p.Left > 0 {
		fmt.Fprintf(s.err, "limiter: %d later events were not read; raise --max\n", p.Left)
	}
}
