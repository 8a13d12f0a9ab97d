// build.rs; nnue/ holds nnue.h, c_api.h and c_api.cpp of examples/engine
use std::{env, process::Command};

fn main() {
    let out = env::var("OUT_DIR").unwrap();
    let root = env::var("CARGO_MANIFEST_DIR").unwrap();
    let object = format!("{out}/c_api.o");
    let library = format!("{out}/libnnue.a");
    let header = format!("-DNNUE_NET_HEADER=\"{root}/net.h\"");
    let arguments = ["-std=c++17", "-O3", "-march=native", "-Innue", &header, "-c", "nnue/c_api.cpp", "-o", &object];
    assert!(Command::new("c++").args(arguments).status().unwrap().success());
    assert!(Command::new("ar").args(["rcs", &library, &object]).status().unwrap().success());
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-lib=static=nnue");
    println!("cargo:rustc-link-lib=stdc++");
    println!("cargo:rerun-if-changed=net.h");
    println!("cargo:rerun-if-changed=nnue");
}
