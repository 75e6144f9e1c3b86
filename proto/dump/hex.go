package dump

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// MaxMessage is the longest message that [ReadHex] reads, in bytes: four times the largest Send that peers can
// negotiate by RFC 8797.
const MaxMessage = 1 << 20

// ReadHex reads messages in hexadecimal: plain digits with or without 0x, commas, colons and spaces, or the output of
// xxd, hexdump -C, tcpdump -x or Wireshark. An empty line ends a message, and lines that begin with # are comments.
// Error messages begin with name, the name of the input, and the line number.
func ReadHex(in io.Reader, name string) ([][]byte, error) {
	var messages [][]byte
	var p paragraph
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 4*MaxMessage)
	number := 0
	for lines.Scan() {
		number++
		line := strings.TrimRight(lines.Text(), " \t\r")
		switch {
		case strings.HasPrefix(strings.TrimLeft(line, " \t"), "#"):
		case line == "":
			if p.lines > 0 {
				messages = append(messages, p.bytes)
			}
			p = paragraph{}
		default:
			if err := p.add(line); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, number, err)
			}
			if len(p.bytes) > MaxMessage {
				return nil, fmt.Errorf("%s:%d: message is longer than %d bytes", name, number, MaxMessage)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, number+1, err)
	}
	if p.lines > 0 {
		messages = append(messages, p.bytes)
	}
	return messages, nil
}

// paragraph is a message being read.
type paragraph struct {
	bytes []byte
	lines int

	// A dump has an offset at the start of each line. The first offset need not be zero.
	dump   bool
	base   uint64
	last   []byte // bytes of the previous line
	repeat bool   // the previous line was a *, which repeats the line before it
}

// add reads one line.
//
//	xxd, tcpdump -x    00000010: 0000 0020 ...  text      0x0010:  0000 0020 ...
//	hexdump -C         00000010  00 00 00 20 ...  |text|
//	Wireshark          0010   00 00 00 20 ...   text
//	plain              00000020 0x00, 0x00 00:00
func (p *paragraph) add(line string) error {
	p.lines++
	offset, data, ok := splitDump(line)
	if p.lines == 1 {
		p.dump, p.base = ok, offset
	}
	if !p.dump {
		b, err := plainHex(line)
		p.bytes = append(p.bytes, b...)
		return err
	}
	if line == "*" && len(p.last) > 0 {
		p.repeat = true
		return nil
	}
	if !ok {
		// hexdump ends with an offset without data.
		var err error
		if offset, err = strconv.ParseUint(line, 16, 64); err != nil {
			return fmt.Errorf("%q has no offset in front as the lines before", line)
		}
	}
	if offset < p.base || offset-p.base > MaxMessage {
		return fmt.Errorf("offset %#x is far from the one of the first line, %#x", offset, p.base)
	}
	at := int(offset - p.base)
	for p.repeat && len(p.bytes)+len(p.last) <= at {
		p.bytes = append(p.bytes, p.last...)
	}
	p.repeat = false
	if at != len(p.bytes) {
		return fmt.Errorf("offset %#x, but byte %#x is next: are lines missing?", offset, p.base+uint64(len(p.bytes)))
	}
	b, err := plainHex(data)
	p.bytes = append(p.bytes, b...)
	p.last = b
	return err
}

// splitDump splits a line of a dump into offset and data. ok reports whether it is such a line.
func splitDump(line string) (offset uint64, data string, ok bool) {
	trimmed := strings.TrimLeft(line, " \t")
	first, rest, more := strings.Cut(trimmed, " ")
	if !more {
		return 0, "", false
	}
	gap := "  " // precedes the text column
	digits, colon := strings.CutSuffix(first, ":")
	digits = strings.TrimPrefix(digits, "0x")
	rest = strings.TrimLeft(rest, " ")
	if colon {
		if len(digits) < 4 {
			return 0, "", false
		}
	} else {
		// Without a colon an offset is recognized by its length: data consists of single bytes.
		next, _, _ := strings.Cut(rest, " ")
		if len(digits) < 4 || len(next) != 2 {
			return 0, "", false
		}
		gap = "   "
	}
	offset, err := strconv.ParseUint(digits, 16, 64)
	if err != nil {
		return 0, "", false
	}
	data, _, _ = strings.Cut(rest, "|")
	data, _, _ = strings.Cut(data, gap)
	return offset, data, true
}

// plainHex decodes digits in groups of whole bytes.
func plainHex(text string) ([]byte, error) {
	var b []byte
	for _, group := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t,:;{}", r) }) {
		group = strings.ReplaceAll(group, `\x`, "")
		group = strings.TrimPrefix(strings.TrimPrefix(group, "0x"), "0X")
		if len(group) == 7 {
			return nil, fmt.Errorf("%q is half a byte short; hexdump needs the option -C, without it the bytes are swapped", group)
		}
		if len(group)%2 != 0 {
			return nil, fmt.Errorf("%q is half a byte short", group)
		}
		var err error
		if b, err = hex.AppendDecode(b, []byte(group)); err != nil {
			return nil, fmt.Errorf("%q is not hexadecimal", group)
		}
	}
	return b, nil
}
