package nfs

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	for _, test := range []struct {
		in         string
		addr, path string
		out        string
	}{
		{"nfs://host/export/a", "host:20049", "/export/a", "nfs://host:20049/export/a"},
		{"nfs://host:2049/", "host:2049", "/", "nfs://host:2049/"},
		{"nfs://host", "host:20049", "/", "nfs://host:20049/"},
		{"NFS://10.0.0.1/e", "10.0.0.1:20049", "/e", "nfs://10.0.0.1:20049/e"},
		{"nfs://[::1]/e", "[::1]:20049", "/e", "nfs://[::1]:20049/e"},
		{"nfs://[fe80::1%25eth0]:1/e", "[fe80::1%eth0]:1", "/e", "nfs://[fe80::1%25eth0]:1/e"},
		{"nfs://h/a%20b/%3F%23%25", "h:20049", "/a b/?#%", "nfs://h:20049/a%20b/%3F%23%25"},
		{"nfs://h/a//b/./c/", "h:20049", "/a/b/c", "nfs://h:20049/a/b/c"},
		{"nfs://h/../a/b/../c", "h:20049", "/a/c", "nfs://h:20049/a/c"},
	} {
		u, err := ParseURL(test.in)
		if err != nil {
			t.Errorf("%s: %v", test.in, err)
			continue
		}
		if u.Addr() != test.addr || u.Path != test.path || u.String() != test.out {
			t.Errorf("%s: %s %s %s", test.in, u.Addr(), u.Path, u)
		}
	}
	for _, test := range []struct{ in, want string }{
		{"", "want nfs://HOST"},
		{"host:/export", "want nfs://HOST"},
		{"/srv", "want nfs://HOST"},
		{"nfs:/h/e", "want nfs://HOST"},
		{"http://h/e", `scheme is "http"`},
		{"nfs:///e", "no host"},
		{"nfs://:20049/e", "no host"},
		{"nfs://h:/e", "no port after"},
		{"nfs://h:0/e", "not one of 1 to 65535"},
		{"nfs://h:65536/e", "not one of 1 to 65535"},
		{"nfs://h:x/e", "port"},
		{"nfs://u@h/e", "user"},
		{"nfs://h/e?x", "%3F"},
		{"nfs://h/e#x", "%23"},
		{"nfs://h/e#", "%23"},
		{"nfs://h/%zz", "%zz"},
		{"nfs://h/%00", "NUL"},
		{"nfs://::1/e", "in brackets"},
		{"nfs://fe80::1", "in brackets"},
		{"nfs://fd00::1:20049/e", "in brackets"},
		{"nfs://fd00::1:nfs/e?", "in brackets"},
		{"nfs://[::1/e", "]"},
		{"nfs://[::1%25a%25b]/e", "neither a name"},
		{"nfs://a%25b/e", ""},
	} {
		_, err := ParseURL(test.in)
		var ue *URLError
		if !errors.As(err, &ue) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want an error with %q", test.in, err, test.want)
		}
	}
}

// A URL that parses prints as a URL that parses to the same value.
func FuzzURL(f *testing.F) {
	f.Add("nfs://host:2049/export/a%20b")
	f.Add("nfs://[fe80::1%25eth0]/")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if (u == nil) == (err == nil) {
			t.Fatalf("%v, %v", u, err)
		}
		if err != nil {
			return
		}
		again, err := ParseURL(u.String())
		if err != nil || *again != *u {
			t.Fatalf("%q is %+v, which prints as %q: %+v, %v", s, u, u, again, err)
		}
	})
}

func TestValidName(t *testing.T) {
	for _, name := range []string{"a", "...", ".a", "a b", "ü", strings.Repeat("x", 300), "-rf"} {
		if !ValidName(name) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range []string{"", ".", "..", "/", "a/b", "../a", "a/", "a\x00b"} {
		if ValidName(name) {
			t.Errorf("%q is let through", name)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		err error
		is  error
	}{
		{&Error{Status: StatusNoEnt}, fs.ErrNotExist},
		{&Error{Status: StatusExist}, fs.ErrExist},
		{&Error{Status: StatusPerm}, fs.ErrPermission},
		{&Error{Status: StatusAcces}, fs.ErrPermission},
		{&Error{Status: StatusInval}, fs.ErrInvalid},
		{&Error{Status: StatusNotSupp}, errors.ErrUnsupported},
		{&MountError{Status: MountNoEnt}, fs.ErrNotExist},
		{&MountError{Status: MountAcces}, fs.ErrPermission},
		{&NameError{}, fs.ErrInvalid},
		{ErrNoExport, fs.ErrNotExist},
	} {
		if !errors.Is(test.err, test.is) {
			t.Errorf("%v is not %v", test.err, test.is)
		}
	}
	if errors.Is(&Error{Status: StatusIO}, fs.ErrNotExist) || (&Error{Status: StatusIO}).Unwrap() != nil {
		t.Error("NFS3ERR_IO unwraps")
	}
	if got, want := (&Error{Op: "LOOKUP", Path: "/a b", Status: StatusNoEnt}).Error(), `nfs: LOOKUP "/a b": NFS3ERR_NOENT`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	err := withPath(&Error{Op: "READ", Status: StatusIO}, "/x")
	if got, want := withPath(err, "/y").Error(), `nfs: READ "/x": NFS3ERR_IO`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
