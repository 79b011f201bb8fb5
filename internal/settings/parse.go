package settings

import (
	"errors"
	"os"
	"reflect"
	"slices"

	"github.com/alecthomas/kong"
)

// Parsing is how both programs take their flags: an environment variable that is empty counts as unset, since Compose and Helm
// pass what nobody set as an empty text, and a path that is given as an empty flag is wrong usage.
func Parsing() kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		return errors.Join(
			kong.WithBeforeReset(forgetEmptyVariables).Apply(k),
			kong.ValueFormatter(helpWithAllVariables).Apply(k),
			kong.PostBuild(refuseEmptyPaths).Apply(k),
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

// refuseEmptyPaths stands before what reads paths, which would make the current folder of an empty one.
func refuseEmptyPaths(k *kong.Kong) error {
	return kong.Visit(k.Model.Node, func(node kong.Visitable, next kong.Next) error {
		if v, ok := node.(*kong.Value); ok && (v.Tag.Type == "path" || v.Tag.Type == "existingfile") {
			read := v.Mapper
			v.Mapper = kong.MapperFunc(func(c *kong.DecodeContext, target reflect.Value) error {
				if c.Scan.Peek().Value == "" {
					return errors.New("the path is empty")
				}
				return read.Decode(c, target)
			})
		}
		return next(nil)
	})
}
