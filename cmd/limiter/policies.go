package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/settings"
)

// policiesCmd works on a policy file, without a limiter.
type policiesCmd struct {
	Validate policiesValidateCmd `cmd:"" help:"Report every mistake of a policy file."`
	Show     policiesShowCmd     `cmd:"" help:"Show the policies of a file."`
	Explain  policiesExplainCmd  `cmd:"" help:"Show which policies, limits and keys a request would have, and why; charges nothing."`
}

func (*policiesCmd) Help() string {
	return `Examples:

  limiter policies validate limits.yaml
  limiter policies explain limits.yaml -a user=7`
}

type policiesValidateCmd struct {
	File string `arg:"" help:"The policy file."`
}

func (*policiesValidateCmd) Help() string {
	return `Examples:

  limiter policies validate limits.yaml

Every mistake has a line: file:line: path: what; the fix. The exit status is 1 when there is one. No hash key is needed.`
}

func (c *policiesValidateCmd) Run(s *session) error {
	set, err := loadPolicies(s, c.File, "")
	if err != nil {
		return printMistakes(s, err)
	}
	n := 0
	for _, p := range set.Policies() {
		n += len(p.Limits)
	}
	fmt.Fprintf(s.out, "%s: valid: %s, %s, hash %s\n", c.File, plural(len(set.Policies()), "policy", "policies"), count(n, "limit"), set.Hash())
	return nil
}

// loadPolicies reads a policy file. A signal ends the wait, because the file may be a pipe without a writer.
func loadPolicies(s *session, file, hashKey string) (*app.PolicySet, error) {
	return await(s, file+" was not read to the end", func() (*app.PolicySet, error) { return app.LoadPolicies(file, hashKey) })
}

// printMistakes prints the mistakes of a file one per line, in a format with which editors can jump to them, and returns
// an error with their number. Other errors are returned unchanged.
func printMistakes(s *session, err error) error {
	mistakes, ok := errors.AsType[*app.PolicyError](err)
	if !ok {
		return err
	}
	fmt.Fprintln(s.err, strings.Map(settings.Shown, err.Error())) // the file's name may have anything in it
	found := count(len(mistakes.Problems), "mistake")
	if mistakes.More {
		found = "more than " + found
	}
	return fmt.Errorf("%s: %s", mistakes.File, found)
}

type policiesShowCmd struct {
	File string `arg:"" help:"The policy file."`
	Name string `arg:"" optional:"" help:"One policy; all unless given."`
	JSON bool   `help:"Print JSON."`
}

func (*policiesShowCmd) Help() string {
	return `Examples:

  limiter policies show limits.yaml
  limiter policies show limits.yaml chat --json`
}

func (c *policiesShowCmd) Run(s *session) error {
	set, err := loadPolicies(s, c.File, "")
	if err != nil {
		return printMistakes(s, err)
	}
	list := set.Policies()
	if c.Name != "" {
		list = slices.DeleteFunc(list, func(p app.Policy) bool { return p.Name != c.Name })
	}
	if len(list) == 0 {
		return fmt.Errorf("%s has no policy %q; to list its policies: limiter policies show %s", c.File, c.Name, c.File)
	}
	if c.JSON {
		return printJSON(s, list)
	}
	t := newTable(s.out, "POLICY", "TIER", "LIMIT", "KEY", "RATE", "APPLIES")
	for i := range list {
		policyRows(t, &list[i])
	}
	t.flush()
	return nil
}

// policyRows adds a row for each limit, for each limit that a tier or a schedule changes, and for each schedule with a
// factor.
func policyRows(t *table, p *app.Policy) {
	rows := func(tier, applies string, list []app.PolicyLimit) {
		for i := range list {
			t.row(p.Name, tier, list[i].Name, list[i].Key, limitText(&list[i]), applies)
		}
	}
	rows("-", whenApplied(p), p.Limits)
	for _, tier := range slices.Sorted(maps.Keys(p.Tiers)) {
		rows(tier, whenApplied(p), p.Changed(p.Tiers[tier]))
	}
	for _, s := range p.Schedule {
		at := strings.Join(slices.Concat([]string{s.From, "to", s.To}, s.Days, nonDefault(s.Timezone)), " ")
		rows("-", at, p.Changed(s.Limits))
		if s.Factor != 0 {
			t.row(p.Name, "*", "*", "*", fmt.Sprintf("×%v", s.Factor), at)
		}
	}
}

// limitText formats a limit, with those of its settings that are not the default.
func limitText(l *app.PolicyLimit) string {
	words := []string{rateOf(l.Limit.String(), l.Window, orZero(l.Burst))}
	if l.Limit.String() != "unlimited" {
		words = append(words, nonDefault(l.Algorithm, l.Timezone, l.Anchor, l.Consistency)...)
	}
	return strings.Join(words, " ")
}

// nonDefault returns the settings that are not the default.
func nonDefault(words ...string) []string {
	defaults := []string{"", limits.SlidingWindow, "UTC", "aligned", limits.Exact}
	return slices.DeleteFunc(words, func(s string) bool { return slices.Contains(defaults, s) })
}

// whenApplied describes when a policy applies.
func whenApplied(p *app.Policy) string {
	text := "when named"
	if len(p.Match) > 0 {
		text = condition(p.Match)
	}
	for i, c := range p.Exempt {
		text += []string{" unless ", " or "}[min(i, 1)] + condition(c)
	}
	if p.Mode == "shadow" {
		text += " (shadow)"
	}
	return text
}

// condition formats each attribute with its patterns.
func condition(c map[string]app.PolicyPatterns) string {
	var parts []string
	for attribute, patterns := range c {
		parts = append(parts, attribute+"="+strings.Join(patterns, "|"))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

type policiesExplainCmd struct {
	clientFlags
	File      string         `arg:"" help:"The policy file."`
	Policy    string         `placeholder:"NAME" help:"The policy that the request names; without it those that match."`
	Tier      string         `placeholder:"TIER" help:"The tier of the request."`
	Attribute attributeFlags `short:"a" placeholder:"NAME=VALUE" help:"An attribute of the request; may be repeated."`
	At        timeFlag       `placeholder:"TIME" help:"When, such as 2027-01-31 or 2027-01-31T12:00:00Z; now unless given."`
	HashKey   string         `env:"HASH_KEY" placeholder:"KEY" help:"The hash key of the service; without it hashed keys are not those of the service."`
	Overrides bool           `help:"Ask the service for its overrides."`
}

func (*policiesExplainCmd) Help() string {
	return `Examples:

  limiter policies explain limits.yaml -a user=7 -a route=chat --tier PRO
  limiter policies explain limits.yaml --policy signup -a ip=203.0.113.9 -a email=a@b.example --at 2026-03-01T22:30:00Z
  limiter policies explain limits.yaml -a user=7 -a route=chat --overrides

Without --overrides no service is needed, and overrides are not known: the service keeps them.`
}

func (c *policiesExplainCmd) Run(s *session) error {
	now := time.Time(c.At)
	if now.IsZero() {
		now = s.now()
	}
	set, err := loadPolicies(s, c.File, c.HashKey)
	if err != nil {
		return printMistakes(s, err)
	}
	question := app.PolicyQuestion{Policy: c.Policy, Tier: c.Tier, Attributes: c.Attribute, Now: now}
	if c.Overrides {
		if question.Overrides, err = c.overrides(s); err != nil {
			return err
		}
	}
	e := set.Explain(question)
	c.noteTiers(s, set, &e)
	if c.HashKey == "" && hashes(set, &e) {
		fmt.Fprintln(s.err, "note: the hashed keys below differ from those of the service; pass its --hash-key (HASH_KEY, or hash.key in its data folder)")
	}
	if c.JSON {
		err = printJSON(s, e)
	} else {
		printExplanation(s, &e)
	}
	if err == nil && e.Error != "" {
		return fmt.Errorf("the request is refused: %s", e.Error)
	}
	return err
}

// noteTiers notes policies that have tiers but not the tier of the request, for example PRO but not pro.
func (c *policiesExplainCmd) noteTiers(s *session, set *app.PolicySet, e *app.PolicyExplanation) {
	if c.Tier == "" {
		return
	}
	for _, p := range set.Policies() {
		unknown := func(x app.ExplainedPolicy) bool { return x.Applies && x.Policy == p.Name && x.Tier == "" }
		if tiers := slices.Sorted(maps.Keys(p.Tiers)); len(tiers) > 0 && slices.ContainsFunc(e.Policies, unknown) {
			fmt.Fprintf(s.err, "note: %s has no tier %q (it has %s), so its limits without a tier apply\n", p.Name, c.Tier, strings.Join(tiers, ", "))
		}
	}
}

// hashes reports whether a policy that applies has a key with the filter hash.
func hashes(set *app.PolicySet, e *app.PolicyExplanation) bool {
	return slices.ContainsFunc(set.Policies(), func(p app.Policy) bool {
		return slices.ContainsFunc(e.Policies, func(x app.ExplainedPolicy) bool { return x.Applies && x.Policy == p.Name }) &&
			slices.ContainsFunc(p.Limits, func(l app.PolicyLimit) bool { return strings.Contains(l.Key, "|hash}") })
	})
}

// overrides reads all overrides of the service, or of the policy.
func (c *policiesExplainCmd) overrides(s *session) (app.PolicyOverrides, error) {
	nc, err := c.connect(s, "policies explain")
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	client := limits.NewClient(nc, limits.Timeout(c.Timeout))
	var all []limits.Override
	for r := (limits.ListOverridesRequest{Policy: c.Policy, Max: limits.MaxListPage}); ; {
		page, err := client.ListOverrides(s.ctx, r)
		if r.Max > 1 && tooLarge(err) {
			r.Max /= 2
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, page.Overrides...)
		if r.After = page.Next; r.After == "" {
			return app.OverridesOf(all), nil
		}
	}
}

func printExplanation(s *session, e *app.PolicyExplanation) {
	for i := range e.Policies {
		p := &e.Policies[i]
		if !p.Applies {
			fmt.Fprintf(s.out, "%s: no: %s\n", p.Policy, p.Why)
			continue
		}
		fmt.Fprintf(s.out, "%s: yes: %s%s\n", p.Policy, p.Why, circumstances(p))
		for i := range p.Limits {
			fmt.Fprintln(s.out, limitLine(&p.Limits[i]))
		}
	}
}

// limitLine formats one line about a limit.
func limitLine(l *app.ExplainedLimit) string {
	if l.Error != "" {
		return fmt.Sprintf("  %s  refused: %s", l.Name, l.Error)
	}
	line := fmt.Sprintf("  %s  %s", l.Name, rateOf(l.Limit.String(), l.Window, l.Burst))
	for _, word := range []string{l.Algorithm, l.Timezone, l.Anchor, l.Consistency, l.Key} { // an unlimited limit may lack them
		if word != "" {
			line += "  " + word
		}
	}
	if l.Override != "" {
		line += fmt.Sprintf("  (override for %s: %s)", l.Override, l.Reason)
	}
	if l.LeftOut != "" {
		line += fmt.Sprintf("  (override for %s does not fit and is ignored: %s)", l.LeftOut, l.Reason)
	}
	return line
}

// circumstances lists what else determined the limits: tier, schedule, group and mode.
func circumstances(p *app.ExplainedPolicy) (text string) {
	for _, c := range []struct{ name, value string }{{"tier", p.Tier}, {"schedule", p.Schedule}, {"group", p.Group}, {"mode", p.Mode}} {
		if c.value != "" {
			text += "; " + c.name + " " + c.value
		}
	}
	return text
}
