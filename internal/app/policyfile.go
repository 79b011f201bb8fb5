package app

import (
	"fmt"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/policy"
)

// The policy file, for the verbs that work on one without a limiter.
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

// placeholderKey stands in for the hash key where none is at hand: the file can be checked without it.
const placeholderKey = "no hash key given"

// LoadPolicies reads a policy file. Without a hash key its hashes are not those of a service; with one that no service takes it
// fails with [ErrOptions].
func LoadPolicies(path, hashKey string) (*PolicySet, error) {
	if err := checkHashKey(hashKey); err != nil {
		return nil, fmt.Errorf("%w: --hash-key: %w", ErrOptions, err)
	}
	if hashKey == "" {
		hashKey = placeholderKey
	}
	return policy.Load(path, policy.Options{HashKey: []byte(hashKey)})
}

// OverridesOf finds among overrides, as a service lists them, what its workers would.
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
