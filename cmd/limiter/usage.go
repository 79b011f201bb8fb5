package main

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/seed503877ad/limits"
)

// usageFlags are the flags of the verbs about usage.
type usageFlags struct {
	clientFlags `set:"timeout=6s"`

	Prefix string `placeholder:"P" help:"Only keys that begin with P."`
	Max    int    `default:"20" placeholder:"N" help:"How many rows (${default})."`
}

func (f *usageFlags) Validate() error { return f.validateMax(f.Max, limits.MaxUsageRows) }

// topCmd shows the keys that hit their limits most.
type topCmd struct {
	usageFlags
	By     string     `default:"denied" enum:"denied,used,allowed" placeholder:"WHAT" help:"denied, used (the cost) or allowed (${default})."`
	Since  periodFlag `default:"1h" placeholder:"PERIOD" help:"How far back, such as 30m, 1h or 7d (${default})."`
	Policy string     `placeholder:"NAME" help:"Only this policy."`
	User   string     `placeholder:"USER" help:"Only this user."`
}

func (*topCmd) Help() string {
	return `Examples:

  limiter top                                  # the keys denied most in the last hour
  limiter top --by used --since 7d --max 5
  limiter top --policy cleanup-code --prefix api:user:

PEAK is the most requests in one minute. The minute in which the period begins counts whole; the counts lag up to 15 seconds
behind.`
}

func (c *topCmd) Run(s *session) error {
	var top limits.Top
	r := limits.TopRequest{By: c.By, Period: string(c.Since), Policy: c.Policy, Prefix: c.Prefix, User: c.User, Max: c.Max}
	if err := c.ask(s, limits.SubjectTop, r, &top); err != nil || c.JSON {
		return err
	}
	if len(top.Rows) == 0 {
		return c.nothing(s)
	}
	t := newTable(s.out, "KEY", "POLICY", "USER", "DENIED", "ALLOWED", "COST", "PEAK")
	for _, row := range top.Rows {
		t.row(cmp.Or(row.Key, "(other keys)"), dash(row.Policy), dash(row.User), row.Denied, row.Allowed, row.Cost, row.Peak)
	}
	t.flush()
	return nil
}

// nothing says that there is no row, and if rows were selected, how much was counted without the key that it belongs to.
func (c *topCmd) nothing(s *session) error {
	fmt.Fprintf(s.out, "nothing %s in the last %s (counts are up to 15s behind)\n", c.By, c.Since)
	c.noteUnknown(s, "policy", c.Policy, policyNames)
	if c.Policy == "" && c.Prefix == "" && c.User == "" {
		return nil
	}
	var all limits.Top
	err := c.ask(s, limits.SubjectTop, limits.TopRequest{By: c.By, Period: string(c.Since), Max: limits.MaxUsageRows}, &all)
	for _, row := range all.Rows {
		if row.Key == "" {
			fmt.Fprintf(s.out, "%d denied and %d allowed were counted without their key, which may be one of these (limiter serve --usage-keys)\n",
				row.Denied, row.Allowed)
		}
	}
	return err
}

// usageCmd shows reports from the request log.
type usageCmd struct {
	usageFlags
	Report string     `arg:"" enum:"traffic,slowest,errors" help:"traffic: the keys with the most requests; slowest: endpoints; errors: status 500 and above."`
	Since  periodFlag `default:"24h" placeholder:"PERIOD" help:"How far back, such as 1h or 7d (${default})."`
}

func (*usageCmd) Help() string {
	return `Examples:

  limiter usage traffic
  limiter usage slowest --since 1h
  limiter usage errors --since 7d --prefix key:acme:

The log holds what clients sent to limits.usage.`
}

func (c *usageCmd) Run(s *session) error {
	var u limits.Usage
	r := limits.UsageRequest{Report: c.Report, Period: string(c.Since), Prefix: c.Prefix, Max: c.Max}
	if err := c.ask(s, limits.SubjectUsageReport, r, &u); err != nil || c.JSON {
		return err
	}
	if len(u.Traffic)+len(u.Slowest)+len(u.Errors) == 0 {
		what := "requests"
		if c.Report == limits.ReportErrors {
			what = "errors"
		}
		fmt.Fprintf(s.out, "no %s in the last %s\n", what, c.Since)
		return nil
	}
	printUsage(s, &u)
	return nil
}

// printUsage prints the report that was asked for.
func printUsage(s *session, u *limits.Usage) {
	var t *table
	switch {
	case len(u.Traffic) > 0:
		t = newTable(s.out, "KEY", "USER", "REQUESTS", "ERRORS")
	case len(u.Slowest) > 0:
		t = newTable(s.out, "ENDPOINT", "METHOD", "REQUESTS", "MEAN", "P95", "MAX")
	default:
		t = newTable(s.out, "ENDPOINT", "METHOD", "STATUS", "REQUESTS")
	}
	for _, r := range u.Traffic {
		t.row(r.Key, dash(r.User), r.Requests, r.Errors)
	}
	for _, r := range u.Slowest {
		t.row(r.Endpoint, r.Method, r.Requests, strconv.FormatFloat(r.Mean, 'f', 1, 64)+"ms", millis(r.P95), millis(r.Max))
	}
	for _, r := range u.Errors {
		t.row(r.Endpoint, r.Method, r.Status, r.Requests)
	}
	t.flush()
}

func millis(n int64) string { return strconv.FormatInt(n, 10) + "ms" }
