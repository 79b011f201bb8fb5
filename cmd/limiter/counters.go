package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

// showCmd shows the counters of one key, or the limits of policies.
type showCmd struct {
	clientFlags
	policyFlags
	Key string `arg:"" optional:"" help:"The key, such as api:user:123."`
}

func (*showCmd) Help() string {
	return `Examples:

  limiter show api:user:123
  limiter show api:user:123 --json
  limiter show --policy generations -a user=7 --tier PRO   # how the limits of a policy stand`
}

func (c *showCmd) Validate() error {
	switch {
	case c.Key != "" && c.given():
		return errors.New("KEY shows all counters of a key, and --policy, --tier and -a the limits of a request; give one of them")
	case c.Key == "" && !c.given():
		return errors.New("KEY is required, or --policy or -a")
	case c.Key == "" && c.Policy == "" && len(c.Attributes) == 0:
		return errors.New("--tier requires --policy or -a")
	}
	return c.clientFlags.Validate()
}

func (c *showCmd) Run(s *session) error {
	var status limits.Status
	r := limits.StatusRequest{Key: c.Key, Policy: c.Policy, Attributes: c.Attributes, Tier: c.Tier}
	if err := c.ask(s, limits.SubjectStatus, r, &status); err != nil || c.JSON {
		return err
	}
	switch {
	case len(status.Counters) == 0 && c.Key == "":
		fmt.Fprintln(s.out, "no limit applies")
		return nil
	case len(status.Counters) == 0:
		fmt.Fprintf(s.out, "%s: nothing used\n", c.Key)
		return nil
	case c.Key != "":
		fmt.Fprintln(s.out, c.Key)
	}
	t := newTable(s.out, counterHeader(c.Key == "")...)
	for i := range status.Counters {
		t.row(counterRow(s.now(), &status.Counters[i], c.Key == "")...)
	}
	t.flush()
	return nil
}

// listCmd lists counters, page by page.
type listCmd struct {
	clientFlags
	Prefix string `placeholder:"P" help:"Only keys that begin with P."`
	After  string `empty:"" placeholder:"A" help:"Begin after a key, or after the next of a page."`
	Max    *int   `placeholder:"N" help:"Show one page of at most N counters; all pages unless set."`
}

func (*listCmd) Help() string {
	return `Examples:

  limiter list
  limiter list --prefix api:user:
  limiter list --max 20
  limiter list --json | jq -r '.counters[].key'      # one page per line`
}

func (c *listCmd) Validate() error { return c.validateMax(pageSize(c.Max), limits.MaxListPage) }

func (c *listCmd) Run(s *session) error {
	return showPages(s, &c.clientFlags, c.Max, c.After, listing[limits.List, limits.Counter]{
		verb: "list", noun: "counters", subject: limits.SubjectList, columns: counterHeader(true),
		ask:   func(after string, max int) any { return limits.ListRequest{Prefix: c.Prefix, After: after, Max: max} },
		items: func(p *limits.List) ([]limits.Counter, string) { return p.Counters, p.Next },
		row:   func(x *limits.Counter) []any { return counterRow(s.now(), x, true) },
	})
}

// resetCmd resets one key, every key with a prefix, or everything. With --prefix and --all it asks first, if standard input
// is a terminal.
type resetCmd struct {
	clientFlags `set:"timeout=6s"`

	Key    string `arg:"" optional:"" help:"The key to reset."`
	Prefix string `placeholder:"P" help:"Reset every key that begins with P."`
	All    bool   `help:"Reset everything."`
	DryRun bool   `name:"dry-run" help:"Count what would be reset, and reset nothing."`
	Yes    bool   `short:"y" help:"Do not ask; needed for --all when standard input is not a terminal."`
}

func (*resetCmd) Help() string {
	return `Examples:

  limiter reset api:user:123
  limiter reset --prefix api:user: --dry-run
  limiter reset --prefix bench: --yes           # without --yes it asks on a terminal`
}

func (c *resetCmd) Validate() error {
	return cmp.Or(oneOf("KEY, --prefix and --all", c.Key != "", c.Prefix != "", c.All), c.clientFlags.Validate())
}

func (c *resetCmd) Run(s *session) error {
	if c.All && !c.DryRun && !c.Yes && !s.inTTY {
		return usageError("reset everything: cannot ask for confirmation, because standard input is not a terminal; pass --yes (or --dry-run)")
	}
	nc, err := c.connect(s, "reset")
	if err != nil {
		return err
	}
	defer nc.Close()
	if c.Key == "" && !c.DryRun && !c.Yes && s.inTTY {
		if err := c.confirm(s, nc); err != nil {
			return err
		}
	}
	var reply limits.ResetReply
	if err := c.askOver(s, nc, limits.SubjectReset, c.request(c.DryRun), &reply); err != nil || c.JSON {
		return err
	}
	act := "reset"
	if c.DryRun {
		act = "would reset"
	}
	fmt.Fprintln(s.out, act, count(reply.Reset, "counter"))
	return nil
}

func (c *resetCmd) request(dryRun bool) limits.ResetRequest {
	return limits.ResetRequest{Key: c.Key, Prefix: c.Prefix, All: c.All, DryRun: dryRun}
}

// confirm counts the counters that would be reset, and asks.
func (c *resetCmd) confirm(s *session, nc *nats.Conn) error {
	found, err := limits.NewClient(nc, limits.Timeout(c.Timeout)).Reset(s.ctx, c.request(true))
	if err != nil {
		return err
	}
	under := ""
	if c.Prefix != "" {
		under = " under " + c.Prefix
	}
	return s.confirm(fmt.Sprintf("reset %s%s?", count(found.Reset, "counter"), under), "nothing was reset")
}
