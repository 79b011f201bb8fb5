package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// policyFlags name a policy, or attributes that policies match, instead of a limit.
type policyFlags struct {
	Policy     string         `placeholder:"NAME" help:"The policy that has the limits, instead of KEY, --limit and --window; those that match the attributes unless set."`
	Tier       string         `placeholder:"TIER" help:"The tier whose limits count."`
	Attributes attributeFlags `name:"attribute" short:"a" placeholder:"NAME=VALUE" help:"An attribute of the request; may be repeated."`
}

// attributeFlags are attributes, one for each flag.
type attributeFlags map[string]string

// Decode reads NAME=VALUE. It refuses a name that is given twice, because only one of the values could count.
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

// pairs formats attributes as they are given on the command line.
func pairs(attributes map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		all = append(all, name+"="+attributes[name])
	}
	return strings.Join(all, " ")
}
