package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/seed503877ad/limits"
)

// policyFlags ask a policy, or all that match the attributes, instead of giving a limit.
type policyFlags struct {
	Policy     string         `placeholder:"NAME" help:"The policy that says the limits, instead of KEY, --limit and --window; those that match the attributes unless set."`
	Tier       string         `placeholder:"TIER" help:"The tier whose limits count."`
	Attributes attributeFlags `name:"attribute" short:"a" placeholder:"NAME=VALUE" help:"An attribute of the request; may be given again."`
}

// attributeFlags are attributes, one a flag.
type attributeFlags map[string]string

// Decode takes NAME=VALUE, and each name once: which of two values would count nobody could tell.
func (f attributeFlags) Decode(c *kong.DecodeContext) error {
	var text string
	if err := c.Scan.PopValueInto("NAME=VALUE", &text); err != nil {
		return err
	}
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("expected NAME=VALUE but got %q", text)
	}
	if _, given := f[name]; given {
		return fmt.Errorf("%s is given twice", name)
	}
	f[name] = value
	return nil
}

func (f *policyFlags) given() bool { return f.Policy != "" || f.Tier != "" || len(f.Attributes) > 0 }

// checkForm holds that a request has one form: a limit, a policy, or JSON.
func (f *decideFlags) checkForm() error {
	limit := limits.Per(f.Key, f.Limit, f.Window).LimitSpec
	limit.Algorithm, limit.Burst, limit.Name = f.Algorithm, f.Burst, f.Name
	limit.Timezone, limit.Anchor, limit.Consistency = f.Timezone, f.Anchor, f.Consistency
	inline := limit != limits.LimitSpec{}
	switch {
	case f.Request != "" && (inline || f.given() || f.Cost != nil || f.ID != ""):
		return errors.New("--request is the whole request: leave out KEY, the flags of limits and policies, --cost and --id, and write what they say into the JSON")
	case f.Request != "":
		return nil
	case f.given() && inline:
		return errors.New("--policy, --tier and -a stand for KEY and the flags of a limit: leave those out, the policy has them")
	case f.given() && f.Policy == "" && len(f.Attributes) == 0:
		return errors.New("--tier needs --policy or -a beside it")
	case !f.given() && (f.Key == "" || f.Limit < 1 || f.Window == ""):
		return errors.New("KEY, --limit (1 or more) and --window are needed, or --policy or -a, or --request")
	}
	return nil
}
