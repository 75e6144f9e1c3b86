package transport_test

import "testing"

func TestShmTransport(t *testing.T)    { runSuite(t, onShm()) }
func TestShmInvalidation(t *testing.T) { testInvalidated(t, onShm()) }
func TestShmSizes(t *testing.T)        { testSizes(t, onShm()) }
func TestShmForeign(t *testing.T)      { runForeign(t, onShm(), true) }

// TestShmMemoryAttacks checks V1-11-3 V1-11-4 PVT-3.2-1: a handle gives no access beyond its purpose.
func TestShmMemoryAttacks(t *testing.T) { runMemoryAttacks(t, onShm(), victim{}, 250) }
