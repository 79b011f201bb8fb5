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

// numberWanted is the message for a value that is not the number or duration that a flag takes. It is empty for other flags, and
// for types that have messages of their own.
func numberWanted(f *kong.Flag) string {
	t := f.Target.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return ""
	case t == reflect.TypeFor[time.Duration]():
		return "is not a duration with a unit; want one such as " + cmp.Or(f.Default, "30s")
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		return "is not a whole number in plain decimal digits, or is too large; want one such as " + cmp.Or(f.Default, "10")
	case t.Kind() == reflect.Float64:
		return "is not a number; want one such as " + cmp.Or(f.Default, "0.5")
	}
	return ""
}

// decodeWhole decodes a whole number with [Whole]. kong would accept Go's notations, and read 010 as 8.
func decodeWhole(c *kong.DecodeContext, target reflect.Value) error {
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

// Whole parses a whole number in plain decimal digits. ok is false for anything else, such as 010 or +1.
func Whole(text string) (n int64, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == text
}

// negative matches a negative number, which kong would take for a short flag. No flag is a digit.
var negative = regexp.MustCompile(`^-[0-9.]`)

// acceptNegativeNumbers makes flags accept values that begin like negative numbers, so that the validation of the flag reports
// them with its bounds. It also replaces kong's messages about values that are not numbers.
func acceptNegativeNumbers(k *kong.Kong) error {
	return kong.Visit(k.Model.Node, func(node kong.Visitable, next kong.Next) error {
		f, ok := node.(*kong.Flag)
		if ok && !f.IsBool() {
			read := f.Mapper
			f.Mapper = kong.MapperFunc(func(c *kong.DecodeContext, target reflect.Value) error {
				text, isText := c.Scan.Peek().Value.(string)
				if isText && negative.MatchString(text) {
					c.Scan.Pop()
					c.Scan.PushTyped(text, kong.FlagValueToken)
				}
				given := c.Scan.Peek().IsValue()
				err := read.Decode(c, target)
				if wanted := numberWanted(f); err != nil && given && wanted != "" { // not given: kong decodes defaults, which may still be templates
					return fmt.Errorf("%q %s", text, wanted)
				}
				return err
			})
		}
		return next(nil)
	})
}
