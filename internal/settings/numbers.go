package settings

import (
	"cmp"
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"time"

	"github.com/alecthomas/kong"
)

// numberWanted tells what a flag takes and the text did not give, if that is a number or a duration. It is empty for a type
// that says so itself, and for all other flags.
func numberWanted(f *kong.Flag) string {
	t := f.Target.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return ""
	case t == reflect.TypeFor[time.Duration]():
		return "is no duration with a unit; want one such as " + cmp.Or(f.Default, "30s")
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		return "is no whole number in plain decimal digits, or too large; want one such as " + cmp.Or(f.Default, "10")
	case t.Kind() == reflect.Float64:
		return "is no number; want one such as " + cmp.Or(f.Default, "0.5")
	}
	return ""
}

// whole reads a whole number as the files do. kong reads it as Go does, and 010 as 8.
func whole(c *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := c.Scan.PopValueInto("number", &text); err != nil {
		return err
	}
	n, ok := Whole(text)
	if !ok {
		return fmt.Errorf("expected a whole number but got %q", text)
	}
	target.SetInt(n)
	return nil
}

// Whole reads plain decimal digits; it is not ok for anything else.
func Whole(text string) (n int64, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == text
}

// negative is a value that kong would take for a short flag where it stands by itself. No flag is a digit.
var negative = regexp.MustCompile(`^-[0-9.]`)

// readNumbers takes values that begin as a number below 0 does: what is wrong with them is said by who knows the bounds. And it
// says in the words of this program what is no number.
func readNumbers(k *kong.Kong) error {
	return kong.Visit(k.Model.Node, func(node kong.Visitable, next kong.Next) error {
		f, ok := node.(*kong.Flag)
		if ok && !f.IsBool() {
			read := f.Mapper
			f.Mapper = kong.MapperFunc(func(c *kong.DecodeContext, target reflect.Value) error {
				text, is := c.Scan.Peek().Value.(string)
				if is && negative.MatchString(text) {
					c.Scan.Pop()
					c.Scan.PushTyped(text, kong.FlagValueToken)
				}
				given := c.Scan.Peek().IsValue()
				err := read.Decode(c, target)
				if wanted := numberWanted(f); err != nil && given && wanted != "" { // before the parse a default may be a template
					return fmt.Errorf("%q %s", text, wanted)
				}
				return err
			})
		}
		return next(nil)
	})
}
