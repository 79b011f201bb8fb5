package settings

import (
	"errors"
	"os"
	"reflect"
	"slices"

	"github.com/alecthomas/kong"
)

// Parsing is how both programs take their flags: an environment variable that is empty counts as unset, since Compose and Helm
// pass what nobody set as an empty text, a flag or an argument that is given empty is wrong usage, and a number may be below 0 and has
// plain decimal digits.
func Parsing() kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		return errors.Join(
			kong.WithBeforeReset(forgetEmptyVariables).Apply(k),
			kong.ValueFormatter(helpWithAllVariables).Apply(k),
			kong.KindMapper(reflect.Int, kong.MapperFunc(whole)).Apply(k),
			kong.KindMapper(reflect.Int64, kong.MapperFunc(whole)).Apply(k),
			kong.PostBuild(readNumbers).Apply(k),
			kong.PostBuild(refuseEmptyValues).Apply(k), // around it
		)
	})
}

// forgetEmptyVariables leaves flags only the variables that say something, before kong looks at them: for kong one that is there
// is set, and so a required flag is given by it, and a path is the current folder. Flag.Envs keeps all of them, so that each
// parse of a parser looks anew.
func forgetEmptyVariables(c *kong.Context) error {
	for _, f := range c.Flags() {
		f.Tag.Envs = slices.DeleteFunc(slices.Clone(f.Envs), func(name string) bool { return os.Getenv(name) == "" })
	}
	return nil
}

// helpWithAllVariables is the help of kong, which names the variables of the tag, with those that are empty too.
func helpWithAllVariables(v *kong.Value) string {
	if v.Flag == nil {
		return kong.DefaultHelpValueFormatter(v)
	}
	shown, tag := *v, *v.Tag
	tag.Envs, shown.Tag = v.Flag.Envs, &tag
	return kong.DefaultHelpValueFormatter(&shown)
}

// refuseEmptyValues stands before what reads values. An empty one mostly comes from a script whose variable is not set, and
// would count as not given: an id that charges again, a path that is the current folder, a list of everything. A flag for which
// empty means something has the tag empty.
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
				return errors.New("is empty; leave it out or give one")
			})
		}
		return next(nil)
	})
}
