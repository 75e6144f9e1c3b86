package main

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// TestCommand checks what the command is linked from, with every adapter: each module has a license
// that is allowed.
func TestCommand(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "rpcrdma")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "../../cmd/rpcrdma"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out bytes.Buffer
	if err := run([]string{binary, binary}, &out); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, m := range info.Deps {
		if strings.HasPrefix(m.Path+"/", own+"/") {
			continue
		}
		named++
		if n := strings.Count(out.String(), "\n"+m.Path+" "+m.Version+": LICENSE"); n != 1 {
			t.Errorf("%s has %d licenses", m.Path, n)
		}
	}
	if named < 5 {
		t.Errorf("%d modules are linked", named)
	}
	for _, want := range []string{"the Go standard library 1.", "Copyright 2009 The Go Authors", ": NOTICE\n", "'go mod download -json github.com/hashicorp/go-uuid@v1.0.3' fetches it"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not among what is printed", want)
		}
	}
}

const (
	mit = `MIT License

Copyright (c) 2026 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT
WARRANTY OF ANY KIND, EXPRESS OR IMPLIED.`
	bsd = `Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:
IN NO EVENT SHALL THE COPYRIGHT HOLDERS BE LIABLE`
	isc = `Permission to use, copy, modify, and/or distribute this software for any
purpose with or without fee is hereby granted. IN NO EVENT SHALL THE AUTHOR BE LIABLE`
)

// mozillaText has the parts of MPL-2.0 that are looked for.
const mozillaText = `Copyright © 2026 Somebody, Inc.

Mozilla Public License, version 2.0

1. Definitions: the GNU General Public License, Version 2.0

6. Covered Software is provided under this License on an "as is" basis.

Exhibit B: "Incompatible With Secondary Licenses", as defined by the Mozilla Public License, v. 2.0.`

func TestIdentify(t *testing.T) {
	apache, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		string(apache):                           "Apache-2.0",
		mit:                                      "MIT",
		bsd:                                      "BSD-2-Clause",
		isc:                                      "ISC",
		bsd + " Neither the name of Google Inc.": "BSD-3-Clause",
		bsd + " All advertising materials must display the following acknowledgement": "",
		mit + ` "Commons Clause" License Condition v1.0`:                              "",
		"GNU GENERAL PUBLIC LICENSE Version 2, June 1991":                             "",
		"Mozilla Public License Version 2.0":                                          "",
		mozillaText:                                                                   "MPL-2.0",
		mozillaText + ` "Commons Clause"`:                                             "",
		"GNU General Public License, " + mozillaText:                                  "",
		"Licensed under the Apache License, Version 2.0":                              "", // says where the license is
		"": "",
	} {
		if got := identify(text); got != want {
			t.Errorf("%.40q is %q, want %q", text, got, want)
		}
	}
}

// Modules without a license that is allowed are named, all of them.
func TestRefusals(t *testing.T) {
	cache := t.TempDir()
	var deps []*debug.Module
	for path, files := range map[string]map[string]string{
		"example.org/Good":   {"LICENSE": mit, "NOTICE": "thanks", "license_test.go": "package x"},
		"example.org/none":   {"README": "none"},
		"example.org/gpl":    {"COPYING": "GNU General Public License"},
		"example.org/both":   {"LICENSE": mit, "LICENSE.md": "Mozilla Public License"},
		"example.org/notice": {"NOTICE": mit[:10]},
	} {
		dir := filepath.Join(cache, strings.ReplaceAll(path, "G", "!g")+"@v1.0.0")
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		deps = append(deps, &debug.Module{Path: path, Version: "v1.0.0"})
	}
	deps = append(deps, &debug.Module{Path: "example.org/gone", Version: "v1.0.0"}, &debug.Module{Path: own + "/rpc/x", Version: "v0.0.0"})
	parts, err := linked(&debug.BuildInfo{GoVersion: "go1.26.0", Deps: deps}, "../..", cache)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = print(parts, &out)
	if err == nil {
		t.Fatal("no complaint")
	}
	for _, want := range []string{"none v1.0.0: there is no license", "gpl v1.0.0: COPYING is none of", "both v1.0.0: LICENSE.md is none of", "notice v1.0.0: there is", "gone v1.0.0: open"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not among the complaints:\n%v", want, err)
		}
	}
	for _, bad := range []string{"Good", "/rpc/x"} {
		if strings.Contains(err.Error(), bad) {
			t.Errorf("complaint about %s:\n%v", bad, err)
		}
	}
	if !strings.Contains(out.String(), "example.org/Good v1.0.0: NOTICE\n\nthanks") || strings.Contains(out.String(), "package x") {
		t.Errorf("printed:\n%s", &out)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"main.go"}, {"no such file"}} {
		if err := run(args, &bytes.Buffer{}); err == nil {
			t.Errorf("no complaint about %q", args)
		}
	}
}

// TestTree: no file has a notice of its own but those with code of an RFC, which docs/install.md
// names, and LICENSE.
func TestTree(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "grep", "-lE", `Copyright (\(c\)|©|[0-9])|SPDX-License`).Output()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{
		"LICENSE": true, "proto/rpcrdma/testdata/rpcrdma_corev2.x": true,
		"tools/rpcrdma2/generate_test.go": true, // the test looks for the notice
		"tools/licenses/main_test.go":     true,
	}
	for _, file := range strings.Fields(string(out)) {
		if !known[file] {
			t.Errorf("%s has a notice: whose is it, and does docs/install.md say so?", file)
		}
	}
}
