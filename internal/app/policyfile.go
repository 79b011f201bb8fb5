package app

import (
	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/policy"
)

// The policy file, for the verbs that work on one without a limiter.
type (
	PolicySet         = policy.Set
	Policy            = policy.Policy
	PolicyLimit       = policy.LimitSpec
	PolicyQuestion    = policy.Question
	PolicyExplanation = policy.Explanation
	ExplainedPolicy   = policy.Explained
	ExplainedLimit    = policy.ExplainedLimit
	PolicyError       = policy.Error
	PolicyOverrides   = policy.Finder
)

// placeholderKey stands in for the hash key where none is at hand: the file can be checked without it.
const placeholderKey = "no hash key given"

// LoadPolicies reads a policy file. Without a hash key its hashes are not those of a service.
func LoadPolicies(path, hashKey string) (*PolicySet, error) {
	if hashKey == "" {
		hashKey = placeholderKey
	}
	return policy.Load(path, policy.Options{HashKey: []byte(hashKey)})
}

// OverridesOf finds among overrides, as a service lists them, what its workers would.
func OverridesOf(list []limits.Override) PolicyOverrides { return bus.OverridesOf(list) }
