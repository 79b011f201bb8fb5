package main

import (
	"errors"
	"fmt"
	"os/user"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/settings"
)

// overridesCmd administers overrides.
type overridesCmd struct {
	Set    overridesSetCmd    `cmd:"" help:"Set other limits for a subject."`
	Delete overridesDeleteCmd `cmd:"" help:"Delete an override: the policy's own limits apply again."`
	List   overridesListCmd   `cmd:"" help:"List overrides."`
}

func (*overridesCmd) Help() string {
	return `Examples:

  limiter overrides set api minute api:user:7 --limit 500 --for 2h --reason import
  limiter overrides list`
}

// overrideArgs name an override.
type overrideArgs struct {
	Policy  string `arg:"" help:"The name of the policy."`
	Name    string `arg:"" name:"limit-name" help:"The name of the limit in the policy."`
	Subject string `arg:"" help:"The key that is limited, such as api:user:7, or a glob, such as 'api:user:acme-*'."`
}

func (a *overrideArgs) id() limits.OverrideID {
	return limits.OverrideID{Policy: a.Policy, Name: a.Name, Subject: a.Subject}
}

// amount is the number of a limit.
type amount int64

// UnmarshalText reads a whole number. For "unlimited", which the list shows, the error names --unlimited.
func (a *amount) UnmarshalText(text []byte) error {
	n, ok := settings.Whole(string(text))
	switch {
	case string(text) == "unlimited":
		return fmt.Errorf("%q is not a number; want one such as 500, or --unlimited", text)
	case !ok:
		return fmt.Errorf("%q is not a whole number in plain decimal digits, or is too large; want one such as 500", text)
	}
	*a = amount(n)
	return nil
}

type overridesSetCmd struct {
	clientFlags
	overrideArgs
	Limit     *amount  `placeholder:"N" help:"How much may be charged in one window."`
	Window    string   `placeholder:"W" help:"A duration such as 500ms, 1m, 1h, 1d, or minute, hour, day, week, month."`
	Burst     *int64   `placeholder:"N" help:"Tokens on top of the limit (token_bucket)."`
	Unlimited bool     `help:"Lift the limit."`
	For       spanFlag `xor:"end" placeholder:"SPAN" help:"How long it applies, such as 2h or 30d; for ever unless set."`
	Until     timeFlag `xor:"end" placeholder:"TIME" help:"Until when, such as 2027-01-31 or 2027-01-31T12:00:00Z."`
	Reason    string   `required:"" placeholder:"TEXT" help:"Why, for people who find it later."`
	By        string   `env:"USER" placeholder:"NAME" help:"Who sets it."`
}

func (*overridesSetCmd) Help() string {
	return `What is not given stays as in the policy. Every worker applies it within a second.

Examples:

  limiter overrides set api minute api:user:7 --limit 500 --for 2h --reason "import, ticket 4711"
  limiter overrides set api minute 'api:user:acme-*' --limit 1000 --burst 50 --until 2027-01-31 --reason "contract"
  limiter overrides set api day api:user:7 --unlimited --reason "load test" --for 30m`
}

func (c *overridesSetCmd) Validate() error {
	changes := c.Limit != nil || c.Window != "" || c.Burst != nil
	switch {
	case c.Unlimited && changes:
		return errors.New("--unlimited cannot be combined with --limit, --window or --burst")
	case !c.Unlimited && !changes:
		return errors.New("--limit, --window, --burst or --unlimited is required")
	case c.Limit != nil && *c.Limit < 1: // in the request 0 would mean no change
		return fmt.Errorf("--limit: %d is below 1", *c.Limit)
	}
	return c.clientFlags.Validate()
}

func (c *overridesSetCmd) Run(s *session) error {
	request := limits.SetOverrideRequest{OverrideID: c.id(), Window: c.Window, Burst: c.Burst,
		Unlimited: c.Unlimited, Reason: c.Reason, By: userName(c.By)}
	if c.Limit != nil {
		request.Limit = int64(*c.Limit)
	}
	if err := c.Until.checkFuture(s); err != nil {
		return err
	}
	switch {
	case c.For != 0:
		request.ExpiresAt = s.now().Add(time.Duration(c.For)).UnixMilli()
	case !time.Time(c.Until).IsZero():
		request.ExpiresAt = time.Time(c.Until).UnixMilli()
	}
	var reply limits.OverrideReply
	if err := c.ask(s, limits.SubjectOverridesSet, request, &reply); err != nil || c.JSON {
		return err
	}
	o := &reply.Override
	fmt.Fprintf(s.out, "%s of %s for %s: %s, until %s\n", o.Name, o.Policy, o.Subject, changed(o), moment(s, o.ExpiresAt, "it is deleted"))
	return nil
}

// userName returns the name of the user, for the log and the lists: --by or $USER, or else the name of the account, as under
// cron and in containers.
func userName(by string) string {
	if by != "" {
		return by
	}
	if account, err := user.Current(); err == nil {
		return account.Username
	}
	return ""
}

// changed lists what an override changes.
func changed(o *limits.Override) string {
	if o.Unlimited {
		return "unlimited"
	}
	var all []string
	if o.Limit != 0 {
		all = append(all, fmt.Sprintf("limit %d", o.Limit))
	}
	if o.Window != "" {
		all = append(all, "window "+o.Window)
	}
	if o.Burst != nil {
		all = append(all, fmt.Sprintf("burst %d", *o.Burst))
	}
	return strings.Join(all, " ")
}

type overridesDeleteCmd struct {
	clientFlags
	overrideArgs
}

func (*overridesDeleteCmd) Help() string {
	return `Examples:

  limiter overrides delete api minute api:user:7
  limiter overrides delete api minute 'api:user:acme-*'`
}

func (c *overridesDeleteCmd) Run(s *session) error {
	var reply limits.DeleteOverrideReply
	if err := c.ask(s, limits.SubjectOverridesDelete, c.id(), &reply); err != nil {
		return err
	}
	if !reply.Deleted {
		return fmt.Errorf("delete override: not found: %s of %s for %s; see: limiter overrides list", c.Name, c.Policy, c.Subject)
	}
	if !c.JSON {
		fmt.Fprintf(s.out, "deleted the override of %s of %s for %s\n", c.Name, c.Policy, c.Subject)
	}
	return nil
}

type overridesListCmd struct {
	clientFlags
	Policy string `placeholder:"NAME" help:"Only those of one policy."`
	After  string `empty:"" placeholder:"A" help:"Begin after the next of a page."`
	Max    *int   `placeholder:"N" help:"Show one page of at most N overrides; all pages unless set."`
}

func (*overridesListCmd) Help() string {
	return `Examples:

  limiter overrides list
  limiter overrides list --policy api --json

"(unused)": the worker's policy file does not have the limit, or the override does not fit it, so it applies to nothing.`
}

func (c *overridesListCmd) Validate() error {
	return c.validateMax(pageSize(c.Max), limits.MaxListPage)
}

func (c *overridesListCmd) Run(s *session) error {
	return showPages(s, &c.clientFlags, c.Max, c.After, listing[limits.OverrideList, limits.Override]{
		verb: "overrides list", noun: "overrides", subject: limits.SubjectOverridesList,
		columns: []any{"POLICY", "LIMIT", "SUBJECT", "CHANGES", "UNTIL", "BY", "REASON"},
		ask: func(after string, max int) any {
			return limits.ListOverridesRequest{Policy: c.Policy, After: after, Max: max}
		},
		items: func(p *limits.OverrideList) ([]limits.Override, string) { return p.Overrides, p.Next },
		row:   func(o *limits.Override) []any { return overrideRow(s, o) },
		none:  func() { c.noteUnknown(s, "policy", c.Policy, policyNames) },
	})
}

func overrideRow(s *session, o *limits.Override) []any {
	until := moment(s, o.ExpiresAt, "-")
	if o.ExpiresAt != 0 && o.ExpiresAt <= s.now().UnixMilli() {
		until += " (over)"
	}
	if o.Unused {
		until += " (unused)"
	}
	return []any{o.Policy, o.Name, o.Subject, changed(o), until, dash(o.By), o.Reason}
}
