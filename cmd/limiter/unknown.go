package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/seed503877ad/limits"
)

// What belongs to a name may outlive it, so the service answers a question about a name that it does not know with an empty
// list. To a person a mistyped name then looks like a quiet time. So notes on standard error name those that there are.
// They take one more question, which is asked only if nothing was found. There are none for keys and users, which come into
// being when they are used.

// noteUnknown notes a policy or a channel that the service does not have. names asks for those that it has. It says nothing
// if they are not known, as for want of a permission, or if the output is for a program.
func (f *clientFlags) noteUnknown(s *session, what, name string, names func(context.Context, *limits.Client) ([]string, error)) {
	all, known := f.namesFor(s, name, names)
	switch {
	case !known || slices.Contains(all, name):
	case len(all) == 0:
		fmt.Fprintf(s.err, "note: unknown %s %q; there is none\n", what, name)
	default:
		fmt.Fprintf(s.err, "note: unknown %s %q; they are %s\n", what, name, firstNames(all))
	}
}

// noteUnknownRule notes a rule of which there is no alert although there are others. Nothing lists the rules themselves.
func (f *clientFlags) noteUnknownRule(s *session, name string) {
	all, known := f.namesFor(s, name, rulesOfLastAlerts)
	if known && len(all) > 0 && !slices.Contains(all, name) {
		fmt.Fprintf(s.err, "note: none of the last alerts is of a rule %q; they are of %s\n", name, firstNames(all))
	}
}

func (f *clientFlags) namesFor(s *session, name string, names func(context.Context, *limits.Client) ([]string, error)) (all []string, known bool) {
	if name == "" || f.JSON {
		return nil, false
	}
	nc, err := f.connect(s, "names")
	if err != nil {
		return nil, false
	}
	defer nc.Close()
	all, err = names(s.ctx, limits.NewClient(nc, limits.Timeout(f.Timeout)))
	return all, err == nil
}

func policyNames(ctx context.Context, c *limits.Client) (all []string, err error) {
	for r := (limits.PoliciesRequest{}); ; {
		page, err := c.Policies(ctx, r)
		if err != nil {
			return nil, err
		}
		for i := range page.Policies {
			all = append(all, page.Policies[i].Name)
		}
		if r.After = page.Next; r.After == "" {
			return all, nil
		}
	}
}

func channelNames(ctx context.Context, c *limits.Client) (all []string, err error) {
	reply, err := c.ListChannels(ctx)
	if err != nil {
		return nil, err
	}
	for i := range reply.Channels {
		all = append(all, reply.Channels[i].Name)
	}
	return all, nil
}

func rulesOfLastAlerts(ctx context.Context, c *limits.Client) (all []string, err error) {
	reply, err := c.ListAlerts(ctx, limits.ListAlertsRequest{Max: limits.MaxAlertPage})
	if err != nil {
		return nil, err
	}
	for i := range reply.Alerts {
		all = append(all, reply.Alerts[i].Rule)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// firstNames lists names on one line, and of many the first.
func firstNames(all []string) string {
	const most = 20
	text := oneLine(strings.Join(all[:min(len(all), most)], ", "))
	if more := len(all) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
