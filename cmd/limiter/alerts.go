package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/seed503877ad/limits"
)

// alertsCmd administers alerts.
type alertsCmd struct {
	List      alertsListCmd      `cmd:"" help:"List alerts, the last raised first."`
	Show      alertsShowCmd      `cmd:"" help:"Show an alert and its deliveries."`
	Silence   alertsSilenceCmd   `cmd:"" help:"Mute matching alerts for a while."`
	Unsilence alertsUnsilenceCmd `cmd:"" help:"End a silence."`
	Silences  alertsSilencesCmd  `cmd:"" help:"List silences."`
	Channels  alertsChannelsCmd  `cmd:"" help:"List the channels and their state."`
	TestSend  alertsTestSendCmd  `cmd:"" name:"test-send" help:"Send a test to a channel, or to all."`
	Dead      alertsDeadCmd      `cmd:"" help:"List what could not be delivered, or not be read."`
	Replay    alertsReplayCmd    `cmd:"" help:"Deliver dead letters again."`
	Validate  alertsValidateCmd  `cmd:"" help:"Report every mistake of an alerts file."`
	Preview   alertsPreviewCmd   `cmd:"" help:"Show what rules would have made of the events of the last hours, sending nothing."`
}

func (*alertsCmd) Help() string {
	return `Examples:

  limiter alerts list --open
  limiter alerts test-send`
}

type alertsListCmd struct {
	clientFlags
	User   string `placeholder:"U" help:"Only alerts about one user."`
	Rule   string `placeholder:"R" help:"Only those of one rule."`
	Policy string `placeholder:"P" help:"Only those of one policy."`
	Open   bool   `help:"Leave out those that were resolved."`
	After  string `empty:"" placeholder:"A" help:"Begin after the next of a page."`
	Max    int    `default:"50" placeholder:"N" help:"At most N alerts (${default})."`
}

func (*alertsListCmd) Help() string {
	return `TOLD is pending, sent (handed to its channels; limiter alerts show ID shows whether they have it),
held (by the throttle or quiet hours, for the digest), or silenced.

Examples:

  limiter alerts list --open
  limiter alerts list --user 7 --max 10
  limiter alerts list --json | jq -r '.alerts[] | select(.notice == "held") | .user'`
}

func (c *alertsListCmd) Validate() error { return c.validateMax(c.Max, limits.MaxAlertPage) }

func (c *alertsListCmd) Run(s *session) error {
	return showPages(s, &c.clientFlags, &c.Max, c.After, listing[limits.AlertList, limits.Alert]{
		verb: "alerts list", noun: "alerts", subject: limits.SubjectAlertsList,
		columns: []any{"ID", "RAISED", "RULE", "SEVERITY", "USER", "LIMIT", "DENIED", "STATE", "TOLD"},
		ask: func(after string, max int) any {
			return limits.ListAlertsRequest{User: c.User, Rule: c.Rule, Policy: c.Policy, Open: c.Open, After: after, Max: max}
		},
		items: func(p *limits.AlertList) ([]limits.Alert, string) { return p.Alerts, p.Next },
		row: func(a *limits.Alert) []any {
			return []any{a.ID, moment(s, a.RaisedAt, "-"), a.Rule, a.Severity, dash(a.User), limitOf(a), a.Denied, alertState(s, a), notice(a)}
		},
		none: func() {
			c.noteUnknownRule(s, c.Rule)
			c.noteUnknown(s, "policy", c.Policy, policyNames)
		},
	})
}

// limitOf formats the limit of an alert.
func limitOf(a *limits.Alert) string {
	return cmp.Or(a.Policy, a.Key) + " " + rate(a.Limit, a.Window, 0)
}

func alertState(s *session, a *limits.Alert) string {
	if a.ResolvedAt == 0 {
		return "open"
	}
	return "resolved " + moment(s, a.ResolvedAt, "")
}

func notice(a *limits.Alert) string {
	if a.Reason == "" {
		return a.Notice
	}
	return a.Notice + ": " + a.Reason
}

type alertsShowCmd struct {
	clientFlags
	ID string `arg:"" name:"id" help:"The id of an alert, a digest or a test; see: limiter alerts list."`
}

func (*alertsShowCmd) Help() string {
	return `Examples:

  limiter alerts show JH6ZQK4SYGXAWSX3QYGDTFXKPL
  limiter alerts show JH6ZQK4SYGXAWSX3QYGDTFXKPL --json | jq '.deliveries[] | select(.state != "sent")'`
}

func (c *alertsShowCmd) Run(s *session) error {
	var d limits.AlertDetails
	if err := c.ask(s, limits.SubjectAlertsShow, limits.ShowAlertRequest{ID: c.ID}, &d); err != nil || c.JSON {
		return err
	}
	if d.Alert != nil {
		printAlert(s, d.Alert)
	}
	if len(d.Deliveries) == 0 {
		fmt.Fprintln(s.out, "no deliveries")
		return nil
	}
	printDeliveries(s, d.Deliveries)
	return nil
}

func printAlert(s *session, a *limits.Alert) {
	fmt.Fprintln(s.out, a.Title)
	if a.Text != "" {
		fmt.Fprintln(s.out, a.Text)
	}
	fmt.Fprintln(s.out)
	t := newTable(s.out, "ID", a.ID)
	t.row("Rule", a.Rule+", "+a.Severity)
	t.row("User", dash(a.User))
	t.row("Limit", limitOf(a)+" ("+a.Name+" of "+a.Key+")")
	t.row("Denied", fmt.Sprintf("%d in %s", a.Denied, count(a.Events, "event")))
	t.row("Events", moment(s, a.FirstAt, "-")+" to "+moment(s, a.LastAt, "-"))
	t.row("Raised", moment(s, a.RaisedAt, "-"))
	t.row("State", alertState(s, a))
	t.row("Told", strings.TrimSpace(notice(a)+" "+moment(s, a.NoticeAt, "")))
	t.row("Channels", dash(strings.Join(a.Channels, " ")))
	if a.Digest != "" {
		t.row("Digest", a.Digest)
	}
	t.flush()
	fmt.Fprintln(s.out)
}

func printDeliveries(s *session, all []limits.AlertDelivery) {
	t := newTable(s.out, "DELIVERY", "STATE", "TRIES", "AT", "ERROR")
	for i := range all {
		d := &all[i]
		t.row(d.ID, d.State, d.Attempts, moment(s, cmp.Or(d.EndedAt, d.CreatedAt), "-"), dash(d.Error))
	}
	t.flush()
}
