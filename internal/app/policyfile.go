package app

import (
	"fmt"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/bus"
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
func OverridesOf(list []limits.Override) PolicyOverrides { return bus.OverridesOf(list) }
