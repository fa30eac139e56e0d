//! A server that echoes and a client that calls it, each a worker on its own software NIC.
//!
//! `cargo run -p copyrpc-rpc --example echo`

use copyrpc_rpc::{Body, Call, CallEnd, Config, Handler, Request, Status, Worker};
use os::clock::now_ns;
use softnic::Nic;

struct Server;

impl Handler<Nic> for Server {
    fn request(&mut self, worker: &mut Worker<Nic>, request: Request, body: Body<'_, Nic>) {
        // An answer always has a place; it fails only if the caller is gone.
        let _ = worker.reply(request.token, Status::Ok, &body.bytes());
    }

    fn ended(&mut self, _: &mut Worker<Nic>, _: u64, _: CallEnd<'_, Nic>) {}
}

struct Client(Option<(Status, String)>);

impl Handler<Nic> for Client {
    fn request(&mut self, _: &mut Worker<Nic>, _: Request, _: Body<'_, Nic>) {}

    fn ended(&mut self, _: &mut Worker<Nic>, _: u64, end: CallEnd<'_, Nic>) {
        self.0 = Some((end.status(), String::from_utf8_lossy(&end.bytes()).into_owned()));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let open = || softnic::open(&softnic::Config::default());
    let mut server = Worker::open(open()?, Config::default(), now_ns())?;
    let mut client = Worker::open(open()?, Config::default(), now_ns())?;
    // Each tells the other where it is: here by a variable, elsewhere by a socket or a file.
    let (to_client, from_server) = server.invite()?;
    let (to_server, from_client) = client.invite()?;
    server.connect(to_client, &from_client)?;
    client.connect(to_server, &from_server)?;

    client.call(to_server, &Call::default(), b"hello, copyrpc")?;
    let mut answer = Client(None);
    while answer.0.is_none() {
        server.poll(now_ns(), &mut Server);
        client.poll(now_ns(), &mut answer); // the call ends here, at its deadline at the latest
    }
    println!("{:?}", answer.0);
    Ok(())
}
