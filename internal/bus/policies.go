package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/policy"
)

// Policies are the policies in force, which resolve requests of form 3, and the state of their file.
type Policies interface {
	Current() *policy.Set
	Report() policy.Report
}

// resolvePolicy resolves form 3. If the policies refuse the request, the error goes into req
// instead of being returned: the policies may have changed, and a request with an id gets the
// answer that it got before.
func (p *parser) resolvePolicy(req *engine.Request) error {
	if p.given&(givenPolicy|givenAttributes) == 0 {
		return invalid("tier", "tier needs policy or attributes as well")
	}
	now := time.Now()
	q := policy.Question{Policy: p.policy, Tier: p.tier, Attributes: p.attributes, Now: now}
	if p.policies == nil {
		if q.Policy != "" {
			req.Refusal = unknownPolicy(q.Policy, "the limiter has no policies; start it with --policies FILE")
		} else {
			p.onNoPolicies()
		}
		return nil
	}
	set := p.policies.Current()
	by := resolvedBy{policies: set.Version(), since: now.UnixMilli()}
	if p.overrides != nil {
		by.overrides, q.Overrides = p.overrides.Version(), p.overrides
	}
	r, err := set.Resolve(q)
	if err != nil {
		req.Refusal = policyError(&q, err)
		return nil
	}
	by.until = r.Until
	p.by = by
	req.Limits, req.OnError = r.Limits, r.OnError
	return nil
}

// resolvedBy is what a request was resolved by: the versions of the policies and of the overrides,
// and the time from since to until, in Unix milliseconds. The zero value is of a request that
// depends on none.
type resolvedBy struct {
	policies, overrides uint64
	since, until        int64
}

// holds reports whether a request that was resolved by this would be resolved alike now.
func (d *decoder) holds(by *resolvedBy) bool {
	if by.policies == 0 {
		return true
	}
	if by.policies != d.policies.Current().Version() || d.overrides != nil && by.overrides != d.overrides.Version() {
		return false
	}
	if by.until == math.MaxInt64 {
		return true
	}
	now := time.Now().UnixMilli()
	return by.since <= now && now < by.until
}

// policyError returns the error of the wire contract for an error of the policies.
func policyError(q *policy.Question, err error) error {
	var ae *policy.AttributeError
	switch {
	case errors.As(err, &ae):
		return badInput("attributes", "attributes."+ae.Attribute, "%s", ae.Error())
	case errors.Is(err, policy.ErrUnknownPolicy):
		return unknownPolicy(q.Policy, limits.SubjectPolicies+" lists them")
	case errors.Is(err, policy.ErrTooManyLimits):
		return &limits.Error{Status: 413, Code: limits.CodeTooManyLimits, Field: "attributes",
			Message: err.Error() + "; put mutually exclusive policies into a group"}
	default:
		return err
	}
}

func unknownPolicy(name, wayOut string) error {
	return &limits.Error{Status: 404, Code: limits.CodeUnknownPolicy, Field: "policy",
		Message: fmt.Sprintf("unknown policy %q; %s", name, wayOut)}
}

// policies answers admin.policies with the policies of this worker and the state of their file.
func (s *Service) policies(_ context.Context, data []byte) (any, error) {
	req, err := decodePolicies(data)
	if err != nil {
		return nil, err
	}
	reply := limits.Policies{Policies: []limits.PolicyInfo{}}
	if s.cfg.Policies == nil {
		return reply, nil
	}
	r := s.cfg.Policies.Report()
	reply.Hash, reply.LoadedAt, reply.Failures = r.Hash, r.LoadedAt.UnixMilli(), r.Failures
	if r.Err != nil {
		reply.Error = truncate(r.Err.Error(), maxReloadError)
	}
	all := r.Current.Policies()
	from := 0
	if req.After != "" {
		from = 1 + slices.IndexFunc(all, func(p policy.Policy) bool { return p.Name == req.After })
		if from == 0 {
			return nil, invalid("after", "after %s is not a valid cursor, or its policy no longer exists; start again without it", quoteText(req.After))
		}
	}
	for i, listed := from, 0; i < len(all) && i < from+req.Max && listed < maxPageLimits; i++ {
		p := &all[i]
		reply.Policies = append(reply.Policies, policyInfo(p))
		listed += len(p.Limits) * (1 + len(p.Tiers) + len(p.Schedule))
	}
	if end := from + len(reply.Policies); end < len(all) { // end is at least 1: the first policy fits in any page
		reply.Next = all[end-1].Name
	}
	return reply, nil
}

// maxPageLimits ends a page after the policy with which it has that many limits, so that no page is
// larger than NATS takes in a message.
const maxPageLimits = 1000

// maxReloadError bounds the error of the file in an answer, in bytes.
const maxReloadError = 4096

func decodePolicies(data []byte) (limits.PoliciesRequest, error) {
	req := limits.PoliciesRequest{Max: limits.MaxPoliciesPage}
	err := readFields(data, text("after", &req.After, 0, limits.MaxNameBytes), number("max", &req.Max, 1, limits.MaxPoliciesPage))
	return req, err
}

func policyInfo(p *policy.Policy) limits.PolicyInfo {
	info := limits.PolicyInfo{Name: p.Name, Group: p.Group, Mode: p.Mode, Tiers: slices.Sorted(maps.Keys(p.Tiers)),
		Limits: policyLimits(p.Limits), TierLimits: map[string][]limits.PolicyLimit{}}
	for tier, changes := range p.Tiers {
		info.TierLimits[tier] = policyLimits(p.Changed(changes))
	}
	for _, s := range p.Schedule {
		info.Schedule = append(info.Schedule, limits.PolicySlot{From: s.From, To: s.To, Days: s.Days, Timezone: s.Timezone,
			Factor: s.Factor, Limits: policyLimits(p.Changed(s.Limits))})
	}
	return info
}

func policyLimits(specs []policy.LimitSpec) (list []limits.PolicyLimit) {
	for i := range specs {
		l := &specs[i]
		info := limits.PolicyLimit{Name: l.Name, Key: l.Key, Limit: max(0, int64(l.Limit)), Unlimited: l.Limit == policy.Unlimited,
			Window: l.Window, Algorithm: l.Algorithm, Timezone: l.Timezone, Anchor: l.Anchor, Consistency: l.Consistency}
		if l.Burst != nil {
			info.Burst = *l.Burst
		}
		list = append(list, info)
	}
	return list
}

// truncate shortens text to some bytes.
func truncate(s string, max int) string {
	if len(s) <= max {
		return s
	}
	return strings.ToValidUTF8(s[:max], "") + "…"
}
