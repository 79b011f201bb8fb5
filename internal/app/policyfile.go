package app

import (
	"cmp"
	"fmt"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/policy"
)

// The types of the policy file, for the verbs that work on one without a limiter.
type (
	PolicySet         = policy.Set
	Policy            = policy.Policy
	PolicyLimit       = policy.LimitSpec
	PolicyPatterns    = policy.Patterns
	PolicyQuestion    = policy.Question
	PolicyExplanation = policy.Explanation
	ExplainedPolicy   = policy.Explained
	ExplainedLimit    = policy.ExplainedLimit
	PolicyError       = policy.Error
	PolicyOverrides   = policy.Finder
)

// placeholderKey is used if no hash key is given: a file can be checked without the right one.
const placeholderKey = "no hash key given"

// LoadPolicies reads a policy file. Without a hash key its hashes differ from those of a service. If the key is too
// short it fails with [ErrOptions].
func LoadPolicies(path, hashKey string) (*PolicySet, error) {
	if err := checkHashKey(hashKey); err != nil {
		return nil, fmt.Errorf("%w: --hash-key: %w", ErrOptions, err)
	}
	return policy.Load(path, policy.Options{HashKey: []byte(cmp.Or(trimHashKey(hashKey), placeholderKey))})
}

// OverridesOf returns a finder over a list of overrides from a service, which finds what the service's workers would.
func OverridesOf(list []limits.Override) PolicyOverrides {
	all := make([]overrides.Override, len(list))
	for i := range list {
		l := &list[i]
		all[i] = overrides.Override{
			ID:    overrides.ID{Policy: l.Policy, Name: l.Name, Subject: l.Subject},
			Limit: l.Limit, Window: l.Window, Burst: l.Burst, Unlimited: l.Unlimited,
			ExpiresAt: l.ExpiresAt, Reason: l.Reason, By: l.By, SetAt: l.SetAt,
		}
	}
	return overrides.Fixed(all)
}
