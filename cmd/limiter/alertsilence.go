package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
)

type alertsSilenceCmd struct {
	clientFlags
	Rule   string   `placeholder:"R" help:"The rule of the alerts, or a glob with *."`
	Policy string   `placeholder:"P" help:"Their policy, or a glob."`
	Key    string   `placeholder:"K" help:"Their key, or a glob."`
	User   string   `placeholder:"U" help:"Their user, or a glob."`
	For    spanFlag `xor:"end" placeholder:"SPAN" help:"How long, such as 2h or 7d."`
	Until  timeFlag `xor:"end" placeholder:"TIME" help:"Until when, such as 2027-01-31 or 2027-01-31T12:00:00Z."`
	Reason string   `required:"" placeholder:"TEXT" help:"Why, for people who find it later."`
	By     string   `env:"USER" placeholder:"NAME" help:"Who silences."`
}

func (*alertsSilenceCmd) Help() string {
	return `Alerts that match everything given are raised and listed, but not sent. One that is still open when the silence ends is
sent when its next event comes.

Examples:

  limiter alerts silence --user acme --for 2h --reason "import, ticket 4711"
  limiter alerts silence --policy 'batch-*' --until 2027-01-31 --reason "migration"
  limiter alerts silence --rule '*' --for 30m --reason "load test"`
}

func (c *alertsSilenceCmd) Validate() error {
	switch {
	case c.Rule+c.Policy+c.Key+c.User == "":
		return errors.New("one of --rule, --policy, --key and --user is required; --rule '*' silences every alert")
	case c.For == 0 && time.Time(c.Until).IsZero():
		return errors.New("--for or --until is required: a silence without an end would be forgotten")
	case c.For > limits.MaxSilenceMillis*spanFlag(time.Millisecond):
		return fmt.Errorf("--for: a silence lasts at most %d days", limits.MaxSilenceMillis/(24*time.Hour).Milliseconds())
	}
	return c.clientFlags.Validate()
}

func (c *alertsSilenceCmd) Run(s *session) error {
	if err := c.Until.checkFuture(s); err != nil {
		return err
	}
	request := limits.SilenceRequest{Rule: c.Rule, Policy: c.Policy, Key: c.Key, User: c.User, Reason: c.Reason, By: userName(c.By)}
	if c.For != 0 {
		request.For = time.Duration(c.For).Milliseconds()
	} else {
		request.ExpiresAt = time.Time(c.Until).UnixMilli()
	}
	var reply limits.SilenceReply
	if err := c.ask(s, limits.SubjectAlertsSilence, request, &reply); err != nil || c.JSON {
		return err
	}
	fmt.Fprintf(s.out, "silence %s until %s; end it with: limiter alerts unsilence %[1]s\n",
		reply.Silence.ID, moment(s, reply.Silence.ExpiresAt, "-"))
	if !strings.Contains(c.Policy, "*") {
		c.noteUnknown(s, "policy", c.Policy, policyNames) // alerts go on if it was meant to be another one
	}
	return nil
}

type alertsUnsilenceCmd struct {
	clientFlags
	ID string `arg:"" name:"id" help:"The id of the silence; see: limiter alerts silences."`
}

func (*alertsUnsilenceCmd) Help() string {
	return `Examples:

  limiter alerts unsilence QYGDTFXKPLJH6ZQK4SYGXAWSX3`
}

func (c *alertsUnsilenceCmd) Run(s *session) error {
	var reply limits.SilenceReply
	if err := c.ask(s, limits.SubjectAlertsUnsilence, limits.UnsilenceRequest{ID: c.ID}, &reply); err != nil || c.JSON {
		return err
	}
	fmt.Fprintf(s.out, "ended silence %s\n", reply.Silence.ID)
	return nil
}

type alertsSilencesCmd struct {
	clientFlags
	All   bool   `help:"List those that have ended too."`
	After string `empty:"" placeholder:"A" help:"Begin after the next of a page."`
	Max   *int   `placeholder:"N" help:"Show one page of at most N silences, the last made first; all pages unless set, or one of 50 with --all."`
}

func (*alertsSilencesCmd) Help() string {
	return `Examples:

  limiter alerts silences
  limiter alerts silences --all --json | jq -r '.silences[] | .id + " " + .reason'      # one page per line`
}

func (c *alertsSilencesCmd) Validate() error {
	return c.validateMax(pageSize(c.Max), limits.MaxSilences)
}

func (c *alertsSilencesCmd) Run(s *session) error {
	if c.All && c.Max == nil {
		c.Max = new(50)
	}
	return showPages(s, &c.clientFlags, c.Max, c.After, listing[limits.SilenceList, limits.Silence]{
		verb: "alerts silences", noun: "silences", subject: limits.SubjectAlertsSilences,
		columns: []any{"ID", "RULE", "POLICY", "KEY", "USER", "UNTIL", "BY", "REASON"},
		ask:     func(after string, max int) any { return limits.ListSilencesRequest{All: c.All, After: after, Max: max} },
		items:   func(p *limits.SilenceList) ([]limits.Silence, string) { return p.Silences, p.Next },
		row:     func(x *limits.Silence) []any { return silenceRow(s, x) },
	})
}

func silenceRow(s *session, x *limits.Silence) []any {
	until := moment(s, x.ExpiresAt, "-")
	if x.ExpiresAt <= s.now().UnixMilli() {
		until += " (over)"
	}
	return []any{x.ID, dash(x.Rule), dash(x.Policy), dash(x.Key), dash(x.User), until, dash(x.By), x.Reason}
}
