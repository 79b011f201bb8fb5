package alerts

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// Bounds of rules.
const (
	maxRules        = 200
	maxPatterns     = 100
	maxPatternBytes = 256
	maxCount        = 1_000_000_000
	minDuration     = time.Second
	maxWithin       = 7 * 24 * time.Hour
	maxDuration     = 31 * 24 * time.Hour
	// minResolve is well above the 10 s between two events of a counter that goes on denying. With less, an alert would be
	// resolved and raised again while denials go on.
	minResolve = 30 * time.Second
)

// fileCompiler compiles a File to Rules, and collects the mistakes.
type fileCompiler struct {
	*yamlfile.Problems
	options FileOptions
	rules   *Rules
}

func (c *fileCompiler) compile(f *File) {
	c.rules.Throttle = Throttle{Limit: defaultThrottle, Window: defaultWindow}
	if t := c.throttle(f.Throttle, "throttle"); t != nil {
		c.rules.Throttle = *t
	}
	c.channels(f.Channels)
	if len(f.Rules) == 0 && !c.Any() {
		c.Add("rules", "is missing; want a list of rules, such as - name: denials")
	}
	if len(f.Rules) > maxRules {
		c.Add(yamlfile.Index("rules", maxRules), "more than %d rules; let one rule match several policies, and group by policy", maxRules)
		return
	}
	for i := range f.Rules {
		path := yamlfile.Index("rules", i)
		r := c.rule(&f.Rules[i], path)
		c.checkDuplicate(&r, path)
		c.rules.Rules = append(c.rules.Rules, r)
	}
	c.checkUnusedChannels(f.Channels)
}

// checkDuplicate reports a rule that has the name of an earlier one, or that would send the same alerts to a channel.
func (c *fileCompiler) checkDuplicate(r *Rule, path string) {
	for j := range c.rules.Rules {
		o := &c.rules.Rules[j]
		switch {
		case o.Name == r.Name && r.Name != "":
			c.Add(path+".name", "%s is already the name of rules[%d]; choose another name", yamlfile.Quote(r.Name), j)
		case c.Has(path):
		case r.Threshold == o.Threshold && r.Within == o.Within && sameSet(r.GroupBy, o.GroupBy) &&
			sameMatch(&r.Match, &o.Match) && slices.ContainsFunc(r.Channels, func(n string) bool { return slices.Contains(o.Channels, n) }):
			c.Add(path, "sends a channel the same alerts as rules[%d], %s; remove one, or change match, threshold or channels", j, yamlfile.Quote(o.Name))
		}
	}
}

func sameMatch(a, b *Match) bool {
	same := func(a, b []string) bool { return sameSet(a, b) || matchesAll(a) && matchesAll(b) }
	return sameSet(a.Types, b.Types) && same(a.Policies, b.Policies) && same(a.Keys, b.Keys) && same(a.Users, b.Users)
}

// sameSet reports whether two lists without repeats differ in their order at most.
func sameSet(a, b []string) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}

// matchesAll reports whether patterns match every text.
func matchesAll(patterns []string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, matchesEverything)
}

// matchesEverything reports whether a pattern is * alone.
func matchesEverything(pattern string) bool { return pattern != "" && strings.Trim(pattern, "*") == "" }

// checkUnusedChannels reports channels that no rule names. Somebody would wait in vain for alerts there.
func (c *fileCompiler) checkUnusedChannels(list []FileChannel) {
	if c.Has("rules") {
		return // an invalid rule may be meant to use it
	}
	for i, f := range list {
		used := slices.ContainsFunc(c.rules.Rules, func(r Rule) bool { return slices.Contains(r.Channels, f.Name) })
		if path := yamlfile.Index("channels", i); !used && !c.Has(path) {
			c.Add(path, "no rule sends to %s; name it in the channels of a rule, or remove it", f.Name)
		}
	}
}

func (c *fileCompiler) rule(f *FileRule, path string) Rule {
	c.name(f.Name, path+".name")
	r := Rule{Name: f.Name, Match: c.match(f.Match, path+".match"), Severity: Warning}
	c.threshold(&r, f.Threshold, path+".threshold")
	if c.OneOf(f.Severity, path+".severity", "info", "warning", "critical") && f.Severity != "" {
		r.Severity = Severity(f.Severity)
	}
	r.GroupBy = c.groupBy(f.GroupBy, path+".groupBy")
	r.Dedup = c.duration(f.Dedup, path+".dedup", defaultDedup, maxDuration)
	r.ResolveAfter = c.duration(f.ResolveAfter, path+".resolveAfter", max(r.Within, minResolve), maxDuration)
	if r.ResolveAfter < minResolve {
		c.Add(path+".resolveAfter", "%s is too short: a counter that keeps denying reports only every 10s; want 30s or more", f.ResolveAfter)
	}
	c.ruleThrottle(&r, f.Throttle, path+".throttle")
	r.Channels = c.channelNames(f.Channels, path+".channels")
	r.Words.title = c.template(f.Title, path+".title")
	r.Words.text = c.template(f.Text, path+".text")
	c.quiet(&r, f.QuietHours, path+".quietHours")
	return r
}

// missing reports a missing field, unless a mistake in it or in its parent was reported already.
func (c *fileCompiler) missing(path, want string) {
	parent := path[:max(0, strings.LastIndexByte(path, '.'))]
	if !c.Has(path) && !c.Reported(parent) {
		c.Add(path, "is missing; want %s", want)
	}
}

var fileNamePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// name checks the name of a rule or a channel.
func (c *fileCompiler) name(name, path string) {
	const want = "1 to 64 letters, digits and . _ -"
	if name == "" {
		c.missing(path, want)
	} else if !fileNamePattern.MatchString(name) {
		c.Add(path, "%s is not a valid name; want %s", yamlfile.Quote(name), want)
	}
}

var eventTypes = []string{"exceeded", "warning", limits.EventExceeded, limits.EventWarning}

// match compiles what a rule selects; without a type only denials.
func (c *fileCompiler) match(f *FileMatch, path string) Match {
	if f == nil {
		f = &FileMatch{}
	}
	m := Match{Types: []string{limits.EventExceeded}}
	if len(f.Type) > 0 {
		m.Types = nil
	}
	for i, t := range f.Type {
		full := "limits." + shortType(t)
		at := c.Item(path+".type", i)
		if c.OneOf(t, at, eventTypes...) && slices.Contains(m.Types, full) {
			c.Add(at, "%s is given twice; remove one", t)
		}
		m.Types = append(m.Types, full)
	}
	m.Policies = c.patterns(f.Policy, path+".policy")
	for i, p := range m.Policies {
		if !policyPattern.MatchString(p) {
			c.Add(c.Item(path+".policy", i), "%s cannot match any policy, as policy names have only letters, digits and . _ - /; change it", yamlfile.Quote(p))
		}
	}
	m.Keys, m.Users = c.patterns(f.Key, path+".key"), c.patterns(f.User, path+".user")
	return m
}

var policyPattern = regexp.MustCompile(`^[A-Za-z0-9._/*-]+$`)

func (c *fileCompiler) patterns(list Texts, path string) []string {
	if len(list) > maxPatterns {
		c.Add(path, "has %d patterns; want at most %d, with * for the part that differs", len(list), maxPatterns)
		return nil
	}
	for i, p := range list {
		at := c.Item(path, i)
		if slices.Index(list, p) < i {
			c.Add(at, "%s is given twice; remove one", yamlfile.Quote(p))
		}
		if len(p) > maxPatternBytes {
			c.Add(at, "has %d bytes; want at most %d", len(p), maxPatternBytes)
		}
		if len(list) > 1 && matchesEverything(p) {
			c.Add(at, "%s matches everything, so the other patterns have no effect; remove it, or the others", yamlfile.Quote(p))
		}
	}
	return list
}

func (c *fileCompiler) threshold(r *Rule, f *FileThreshold, path string) {
	if f == nil {
		f = &FileThreshold{}
	}
	r.Threshold = defaultDenials
	if !slices.Contains(r.Match.Types, limits.EventExceeded) {
		r.Threshold = 1
	}
	if f.Denials != nil {
		r.Threshold = c.count(*f.Denials, path+".denials")
	}
	r.Within = c.duration(f.Within, path+".within", defaultWithin, maxWithin)
}

// count checks that a number is from 1 to 1000000000.
func (c *fileCompiler) count(n int64, path string) int64 {
	if n < 1 || n > maxCount {
		c.Add(path, "%d is out of range; want 1 to %d", n, maxCount)
	}
	return n
}

// duration reads a duration from 1s to max; the default if there is none.
func (c *fileCompiler) duration(text, path string, byDefault, max time.Duration) time.Duration {
	if text == "" {
		return byDefault
	}
	d, err := parseDuration(text, max)
	if err != nil {
		c.Add(path, "%s", err)
		return byDefault
	}
	return d
}

var durationUnits = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour,
}

// parseDuration reads a duration in the format of a limit's window, from 1s to max.
func parseDuration(text string, max time.Duration) (time.Duration, error) {
	unit := strings.TrimLeft(text, "0123456789")
	digits := strings.TrimSuffix(text, unit)
	u, ok := durationUnits[unit]
	if digits == "" || digits[0] == '0' || !ok {
		return 0, fmt.Errorf("invalid duration %s; want a number with a unit such as 30s, 5m, 1h, 1d", yamlfile.Quote(text))
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > int64(max/u) || time.Duration(n)*u < minDuration {
		return 0, fmt.Errorf("duration %s is out of range; want 1s to %dd", yamlfile.Quote(text), max/(24*time.Hour))
	}
	return time.Duration(n) * u, nil
}

var groupNames = []string{"user", "policy", "window", "key", "name"}

func (c *fileCompiler) groupBy(list []string, path string) []string {
	if len(list) == 0 {
		return slices.Clone(defaultGroupBy)
	}
	for i, name := range list {
		if at := yamlfile.Index(path, i); c.OneOf(name, at, groupNames...) && slices.Index(list, name) < i {
			c.Add(at, "%s is given twice; remove one", name)
		}
	}
	return list
}

// throttle compiles a throttle; nil if there is none.
func (c *fileCompiler) throttle(f *FileThrottle, path string) *Throttle {
	if f == nil {
		return nil
	}
	if f.Limit == nil || f.Window == "" {
		if !c.Has(path) {
			c.Add(path, "needs both limit and window, such as {limit: 20, window: 1h}")
		}
		return nil
	}
	t := &Throttle{Limit: c.count(*f.Limit, path+".limit"), Window: f.Window}
	c.duration(f.Window, path+".window", 0, maxDuration)
	return t
}

// ruleThrottle compiles the throttle of a rule. It must be stricter than the throttle of all rules in some way.
func (c *fileCompiler) ruleThrottle(r *Rule, f *FileThrottle, path string) {
	t := c.throttle(f, path)
	if t == nil || c.Has(path) || c.Has("throttle") {
		return
	}
	t.Name, r.Throttle = r.Name, t
	all := c.rules.Throttle
	window, _ := parseDuration(t.Window, maxDuration)
	if of, _ := parseDuration(all.Window, maxDuration); t.Limit >= all.Limit && window <= of {
		c.Add(path, "has no effect, because the throttle for all rules allows only %d in %s; lower it, or remove it", all.Limit, all.Window)
	}
}

// channelNames reads the channels of a rule; nats and log if there are none.
func (c *fileCompiler) channelNames(list Texts, path string) []string {
	if len(list) == 0 {
		return []string{ChannelNATS, ChannelLog}
	}
	var known []string
	for _, s := range c.rules.Channels {
		known = append(known, s.Name)
	}
	for i, name := range list {
		at := c.Item(path, i)
		switch {
		case name == "" || c.Has("channels"): // reported already, or a consequence of a mistake in channels
		case !slices.Contains(known, name):
			c.Add(at, "unknown channel %s%s; add it to channels, or use one of %s", yamlfile.Quote(name), yamlfile.DidYouMean(name, known), strings.Join(known, ", "))
		case slices.Index(list, name) < i:
			c.Add(at, "%s is given twice; remove one", yamlfile.Quote(name))
		}
	}
	return list
}
