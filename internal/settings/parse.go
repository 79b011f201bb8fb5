package settings

import (
	"errors"
	"os"
	"reflect"
	"slices"

	"github.com/alecthomas/kong"
)

// Parsing is the kong option for how both programs parse their flags:
//
//   - An empty environment variable counts as unset, since Compose and Helm pass unset values as empty texts.
//   - A flag or argument with an empty value is wrong usage.
//   - Numbers may be negative, and are in plain decimal digits.
func Parsing() kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		return errors.Join(
			kong.WithBeforeReset(forgetEmptyVariables).Apply(k),
			kong.ValueFormatter(helpWithAllVariables).Apply(k),
			kong.KindMapper(reflect.Int, kong.MapperFunc(decodeWhole)).Apply(k),
			kong.KindMapper(reflect.Int64, kong.MapperFunc(decodeWhole)).Apply(k),
			kong.PostBuild(acceptNegativeNumbers).Apply(k),
			kong.PostBuild(refuseEmptyValues).Apply(k), // last, so that it wraps the other mappers
		)
	})
}

// forgetEmptyVariables removes empty environment variables from the flags before kong reads them. For kong an empty variable is
// set: it satisfies a required flag, and makes a path the current folder. Flag.Envs keeps all variables, so that each parse
// looks at them anew.
func forgetEmptyVariables(c *kong.Context) error {
	for _, f := range c.Flags() {
		f.Tag.Envs = slices.DeleteFunc(slices.Clone(f.Envs), func(name string) bool { return os.Getenv(name) == "" })
	}
	return nil
}

// helpWithAllVariables is kong's help, which names the variables of the tag, extended by the empty ones.
func helpWithAllVariables(v *kong.Value) string {
	if v.Flag == nil {
		return kong.DefaultHelpValueFormatter(v)
	}
	shown, tag := *v, *v.Tag
	tag.Envs, shown.Tag = v.Flag.Envs, &tag
	return kong.DefaultHelpValueFormatter(&shown)
}

// refuseEmptyValues makes flags and arguments reject empty values. They mostly come from a script with an unset variable, and
// would count as not given: an id would charge again, a path would be the current folder, a list would have everything. Flags
// for which an empty value has a meaning have the tag empty.
func refuseEmptyValues(k *kong.Kong) error {
	return kong.Visit(k.Model.Node, func(node kong.Visitable, next kong.Next) error {
		if v, ok := node.(*kong.Value); ok && !v.IsBool() && !v.Tag.Has("empty") {
			read := v.Mapper
			v.Mapper = kong.MapperFunc(func(c *kong.DecodeContext, target reflect.Value) error {
				switch {
				case c.Scan.Peek().Value != "":
					return read.Decode(c, target)
				case v.Required:
					return errors.New("is empty")
				}
				return errors.New("is empty; omit it or give a value")
			})
		}
		return next(nil)
	})
}
